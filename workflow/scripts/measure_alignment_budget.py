"""Models trained apart, matched by growing numbers of probes."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.trajectories.study import Named
    from normgauge.trajectories.transport_study import measure_alignment_budget

    set_arithmetic(snakemake.threads)
    given, files = snakemake.params, snakemake.input
    models = [
        Named(name, folder, config)
        for name, folder, config in zip(given.names, files.checkpoints, given.configs, strict=True)
    ]
    measure_alignment_budget(models, files.calibration[0], given.budgets, snakemake.output)
