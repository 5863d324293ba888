"""Observe one checkpoint's float64 forward passes: inputs and outputs of every map and norm."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.exact_recovery.observe import observe

    set_arithmetic(snakemake.threads)
    params = snakemake.params
    checkpoint = open_checkpoint(snakemake.input.checkpoint, params.entry.get("config"))
    observe(checkpoint, snakemake.output[0], params.rows, params.seed)
