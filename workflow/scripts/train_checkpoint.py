"""Train one of the pipeline's own models and describe it in the manifest."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.anatomy import describe
    from normgauge.calibration.prepare import check_interface
    from normgauge.capture.norms import norm_rows
    from normgauge.checkpoints.building import check_checkpoint
    from normgauge.checkpoints.manifest import build_manifest, write_manifest
    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.checkpoints.sources import parse_source, seed_of
    from normgauge.training.train import train

    set_arithmetic(snakemake.threads)
    model, revision, entry = snakemake.wildcards.model, snakemake.wildcards.revision, snakemake.params.entry
    folder = snakemake.output.checkpoint
    train(parse_source(model, entry).recipe, seed_of(revision), snakemake.input.corpus, folder, snakemake.threads)
    checkpoint = open_checkpoint(folder, entry.get("config"))
    anatomy = describe(checkpoint.config)
    check_checkpoint(checkpoint)
    norm_rows(anatomy, checkpoint.tensors)  # refuses a norm whose gains are all zero
    check_interface(entry, checkpoint.config)
    manifest = build_manifest(model, revision, entry, folder, anatomy, checkpoint)
    write_manifest(snakemake.output.manifest, manifest)
