"""Measure kernels of norms, conserved shifts of optimisers, and norms in different places."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.dead_directions.experiments import measure_synthetic

    set_arithmetic(snakemake.threads)
    params = snakemake.params
    measure_synthetic(
        snakemake.input.shapes, params.seeds, params.seed, dict(snakemake.output.items())
    )
