"""Draw fresh observations for the columns that the solver could not decide, and decide them."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from pathlib import Path

    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.recovery.recover import close_stragglers

    set_arithmetic(snakemake.threads)
    params, given = snakemake.params, snakemake.input
    checkpoint = open_checkpoint(given.checkpoint, params.entry.get("config"))
    close_stragglers(checkpoint, Path(given.observations), Path(given.solution), Path(snakemake.output[0]), params.rows, params.seed)
