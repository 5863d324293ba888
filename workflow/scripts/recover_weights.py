"""Recover the weights of one checkpoint block by block; each solver is a process that knows of no
checkpoint.
"""

import os

from _script import reporting, set_arithmetic

with reporting(snakemake):
    os.environ.update(snakemake.params.kernels)  # before the libraries choose theirs
    from pathlib import Path

    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.exact_recovery.by_block import recover_by_block

    set_arithmetic(snakemake.threads)
    params, output = snakemake.params, Path(snakemake.output[0])
    checkpoint = open_checkpoint(snakemake.input.checkpoint, params.entry.get("config"))
    observed = params.rows, params.seed, params.arithmetic, params.published
    recover_by_block(checkpoint, output, *observed)
