"""Draw fresh observations for the columns that the solver could not decide, and decide them."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from pathlib import Path

    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.exact_recovery.closing import close_stragglers
    from normgauge.exact_recovery.second_stage import Protocol

    set_arithmetic(snakemake.threads)
    params, given = snakemake.params, snakemake.input
    checkpoint = open_checkpoint(given.checkpoint, params.entry.get("config"))
    places = Path(given.solution), Path(snakemake.output[0])
    protocol = Protocol(params.outputs, params.chunks)
    close_stragglers(checkpoint, *places, params.rows, params.seed + 1, protocol, params.published)
