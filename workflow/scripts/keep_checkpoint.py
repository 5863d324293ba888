"""Copy a kept step of a run into a checkpoint folder of its own and describe it in the manifest."""

from _script import reporting

with reporting(snakemake):
    from normgauge.capture.checkpoint import describe_checkpoint
    from normgauge.checkpoints.sources import parse_source
    from normgauge.trajectories.runs import copy_kept

    model, revision = snakemake.wildcards.model, snakemake.wildcards.revision
    entry, folder = snakemake.params.entry, snakemake.output.checkpoint
    run, step = parse_source(model, entry).kept[revision]
    copy_kept(f"{snakemake.input[0]}/{run}/step{step}", folder)
    describe_checkpoint(model, revision, entry, folder, snakemake.output.manifest)
