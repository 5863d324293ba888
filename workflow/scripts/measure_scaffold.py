"""The discrete part of rotations between runs."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.signed_permutation.laws_study import Turned, measure_scaffold

    set_arithmetic(snakemake.threads)
    given, files = snakemake.params, snakemake.input
    pairs = [
        Turned(tuple(names), folders, tuple(configs), calibration, recorded and tuple(recorded))
        for names, folders, configs, calibration, recorded in zip(
            given.names,
            zip(files.first, files.second, strict=True),
            given.configs,
            files.calibration,
            given.recorded,
            strict=True,
        )
    ]
    measure_scaffold(pairs, given.sequences, given.seed, snakemake.output)
