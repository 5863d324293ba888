"""Run the calibration through one checkpoint and keep the moments of every site."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    import json
    from pathlib import Path

    from normgauge.capture import CaptureSettings, capture_checkpoint

    set_arithmetic(snakemake.threads)
    params, wildcards = snakemake.params, snakemake.wildcards
    capture_checkpoint(
        snakemake.input.checkpoint,
        json.loads(Path(snakemake.input.manifest).read_text(encoding="utf-8")),
        snakemake.input.calibration,
        snakemake.output[0],
        CaptureSettings(
            forward_dtypes=params.forward_dtypes,
            accumulation=params.accumulation,
            batch_size=params.batch_size,
            schur_sites=params.schur_sites,
            jackknife_groups=params.jackknife_groups,
            gpus=snakemake.resources.gpu,
        ),
        named=(wildcards.model, wildcards.revision),
        part=(int(wildcards.shard), int(wildcards.shards)),
        config_overrides=params.entry.get("config"),
    )
