"""Measure the re-initialised twins of one checkpoint: the same configuration and inputs, fresh weights from each seed."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.fingerprint.reinitialised import fingerprint_reinitialised

    set_arithmetic(snakemake.threads)
    params = snakemake.params
    fingerprint_reinitialised(
        folder=snakemake.input.checkpoint,
        manifest=snakemake.input.manifest,
        calibration=snakemake.input.calibration,
        outputs=dict(snakemake.output.items()),
        config_overrides=params.entry.get("config"),
        seeds=params.seeds,
        forward_dtypes=params.forward_dtypes,
        schur_taps=params.schur_sites,
        accumulation=params.accumulation,
        batch_size=params.batch_size,
        jackknife_groups=params.jackknife_groups,
        force_cov32=params.force_cov32,
        gpus=snakemake.resources.gpu,
    )
