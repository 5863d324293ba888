"""Measure the re-initialised twins of one checkpoint: the same configuration and inputs, fresh
weights from each seed.
"""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.capture import CaptureSettings
    from normgauge.fingerprint.reinitialised import fingerprint_reinitialised

    set_arithmetic(snakemake.threads)
    params = snakemake.params
    fingerprint_reinitialised(
        snakemake.input.checkpoint,
        snakemake.input.manifest,
        snakemake.input.calibration,
        dict(snakemake.output.items()),
        CaptureSettings(
            forward_dtypes=params.forward_dtypes,
            accumulation=params.accumulation,
            batch_size=params.batch_size,
            schur_sites=params.schur_sites,
            jackknife_groups=params.jackknife_groups,
            gpus=snakemake.resources.gpu,
        ),
        params.seeds,
        config_overrides=params.entry.get("config"),
        force_cov32=params.force_cov32,
    )
