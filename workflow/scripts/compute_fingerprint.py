"""Merge the moments of one checkpoint and compute its fingerprint."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.fingerprint import fingerprint_checkpoint

    set_arithmetic(snakemake.threads)
    fingerprint_checkpoint(
        snakemake.input.moments,
        snakemake.params.forward_dtypes,
        snakemake.input.manifest,
        dict(snakemake.output.items()),
        force_cov32=snakemake.params.force_cov32,
    )
