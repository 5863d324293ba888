"""Measure the nullity of the Jacobians of small random models, and try the claimed rotation on one
block.
"""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.redundancy.files import write_falsifier, write_measurements

    set_arithmetic(snakemake.threads)
    write_measurements(
        snakemake.input.shapes,
        snakemake.params.seed,
        snakemake.output.jacobian,
        snakemake.output.hessian,
    )
    write_falsifier(snakemake.params.seed, snakemake.output.falsifier)
