"""Recover the weights of one checkpoint block by block; each solver is a process that knows of no
checkpoint.
"""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from pathlib import Path

    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.exact_recovery.by_block import recover_by_block

    set_arithmetic(snakemake.threads)
    params, output = snakemake.params, Path(snakemake.output[0])
    checkpoint = open_checkpoint(snakemake.input.checkpoint, params.entry.get("config"))
    recover_by_block(checkpoint, output, params.rows, params.seed, params.arithmetic)
