"""Greedy assignment beside the exact one."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.signed_permutation.laws_study import measure_greedy

    set_arithmetic(snakemake.threads)
    given, files = snakemake.params, snakemake.input
    measure_greedy(
        given.model,
        files.checkpoint[0],
        files.calibration[0],
        given.overrides,
        given.settings,
        snakemake.output,
    )
