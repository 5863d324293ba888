"""Losses between checkpoints that are merged in several coordinates."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.trajectories.study import Named, measure_merging

    set_arithmetic(snakemake.threads)
    given, files = snakemake.params, snakemake.input
    sides = [
        [Named(name, folder, config) for name, folder, config in zip(names, *rest, strict=True)]
        for names, *rest in zip(
            given.names, zip(files.first, files.second, strict=True), given.configs, strict=True
        )
    ]
    pairs = [
        (first, second, calibration, settings)
        for (first, second), calibration, settings in zip(
            sides, files.calibration, given.merging["pairs"], strict=True
        )
    ]
    measure_merging(pairs, snakemake.output, given.merging["sizes"])
