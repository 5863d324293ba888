"""Observe one part of a checkpoint: a block, or what lies outside of them."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from pathlib import Path

    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.exact_recovery.by_block import observe_numbered

    set_arithmetic(snakemake.threads)
    params, given, output = snakemake.params, snakemake.input, snakemake.output
    number, before = int(snakemake.wildcards.part), given.get("before")
    checkpoint = open_checkpoint(given.checkpoint, params.entry.get("config"))
    places = Path(output.observations), Path(before) if before else None, Path(output.relay)
    observed = params.rows, params.seed, params.published
    observe_numbered(checkpoint, number, params.parts, places, *observed)
