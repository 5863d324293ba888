"""Measure the re-initialised twins of one checkpoint: the same configuration and inputs, fresh weights from each seed."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.fingerprint.study import reinitialised_checkpoint

    set_arithmetic(snakemake.threads)
    params = snakemake.params
    reinitialised_checkpoint(
        snakemake.input.manifest,
        params.entry,
        snakemake.input.checkpoint,
        snakemake.input.calibration,
        seeds=params.seeds,
        forward_dtypes=params.forward_dtypes,
        schur_sites=params.schur_sites,
        accumulation=params.accumulation,
        batch_size=params.batch_size,
        fingerprint=snakemake.output.fingerprint,
        schur=snakemake.output.schur,
        stacks=snakemake.output.stacks,
    )
