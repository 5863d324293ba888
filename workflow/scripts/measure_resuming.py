"""Training resumed after a change of coordinates."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.trajectories.study import Named, measure_resuming

    set_arithmetic(snakemake.threads)
    given, files = snakemake.params, snakemake.input
    models = [
        Named(name, folder, config)
        for name, folder, config in zip(given.names, files.checkpoints, given.configs, strict=True)
    ]
    measure_resuming(models, files.corpus, snakemake.output, given.resuming)
