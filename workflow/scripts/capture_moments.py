"""Run the calibration through one checkpoint and keep the moments of every site."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.capture import capture_checkpoint

    set_arithmetic(snakemake.threads)
    params, wildcards = snakemake.params, snakemake.wildcards
    capture_checkpoint(
        wildcards.model,
        wildcards.revision,
        params.entry,
        snakemake.input.checkpoint,
        snakemake.input.calibration,
        snakemake.output[0],
        forward_dtype=wildcards.forward_dtype,
        groups=params.groups,
        schur_sites=params.schur_sites,
        accumulation=params.accumulation,
        shard=int(wildcards.shard),
        shards=int(wildcards.shards),
        batch_size=params.batch_size,
    )
