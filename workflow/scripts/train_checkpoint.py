"""Train one of the pipeline's own models and describe it in the manifest."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.anatomy import describe
    from normgauge.checkpoints.manifest import build_manifest, write_manifest
    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.checkpoints.sources import parse_source, seed_of
    from normgauge.training.train import train

    set_arithmetic(snakemake.threads)
    model, revision, entry = snakemake.wildcards.model, snakemake.wildcards.revision, snakemake.params.entry
    folder = snakemake.output.checkpoint
    train(parse_source(model, entry).recipe, seed_of(revision), snakemake.input.corpus, folder, snakemake.threads)
    checkpoint = open_checkpoint(folder, entry.get("config"))
    manifest = build_manifest(model, revision, entry, folder, describe(checkpoint.config), checkpoint)
    write_manifest(snakemake.output.manifest, manifest)
