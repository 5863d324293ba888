"""Run the calibration through one checkpoint and keep the moments of every site."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    import json
    from pathlib import Path

    from normgauge.capture import capture_checkpoint

    set_arithmetic(snakemake.threads)
    params, wildcards = snakemake.params, snakemake.wildcards
    capture_checkpoint(
        model_id=wildcards.model,
        revision=wildcards.revision,
        folder=snakemake.input.checkpoint,
        manifest=json.loads(Path(snakemake.input.manifest).read_text()),
        calibration=snakemake.input.calibration,
        destination=snakemake.output[0],
        config_overrides=params.entry.get("config"),
        forward_dtypes=params.forward_dtypes,
        schur_taps=params.schur_sites,
        accumulation=params.accumulation,
        shard=int(wildcards.shard),
        shards=int(wildcards.shards),
        batch_size=params.batch_size,
        jackknife_groups=params.jackknife_groups,
        gpus=snakemake.resources.gpu,
    )
