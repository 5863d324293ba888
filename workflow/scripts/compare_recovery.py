"""Compare what was recovered with what is stored: the identifiability map and its evidence."""

from _script import reporting

with reporting(snakemake):
    from pathlib import Path

    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.exact_recovery.compare import provenance, write_comparison

    given = snakemake.input
    checkpoint = open_checkpoint(given.checkpoint, snakemake.params.entry.get("config"))
    write_comparison(
        checkpoint, provenance(given.manifest), Path(given.closed), dict(snakemake.output.items())
    )
