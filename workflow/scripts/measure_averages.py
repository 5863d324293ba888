"""Losses of the average of two checkpoints, aligned and not."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.trajectories.averaging import Recorded
    from normgauge.trajectories.study import Named, measure_averages

    set_arithmetic(snakemake.threads)
    given, files = snakemake.params, snakemake.input
    pairs = [
        (Named(names[0], first), Named(names[1], second), recorded and Recorded(*recorded))
        for names, first, second, recorded in zip(
            given.names, files.first, files.second, given.recorded, strict=True
        )
    ]
    corpora = dict(zip(given.corpora, files.corpora, strict=True))
    measure_averages(pairs, corpora, snakemake.output, given.averaging)
