"""Merge the moments of one checkpoint and compute its fingerprint."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.fingerprint.study import fingerprint_checkpoint

    set_arithmetic(snakemake.threads)
    fingerprint_checkpoint(
        snakemake.input.moments,
        snakemake.input.manifest,
        snakemake.params.entry,
        snakemake.input.checkpoint,
        fingerprint=snakemake.output.fingerprint,
        schur=snakemake.output.schur,
        stacks=snakemake.output.stacks,
        summary=snakemake.output.summary,
    )
