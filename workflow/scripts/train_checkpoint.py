"""Train one of the pipeline's own models and describe it in the manifest."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.capture.checkpoint import describe_checkpoint
    from normgauge.checkpoints.sources import parse_source, seed_of
    from normgauge.training.train import train

    set_arithmetic(snakemake.threads)
    model, revision, entry = (
        snakemake.wildcards.model,
        snakemake.wildcards.revision,
        snakemake.params.entry,
    )
    folder = snakemake.output.checkpoint
    train(
        parse_source(model, entry).recipe,
        seed_of(revision),
        snakemake.input.corpus,
        folder,
        snakemake.threads,
    )
    describe_checkpoint(model, revision, entry, folder, snakemake.output.manifest)
