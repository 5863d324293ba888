"""Measure the nullity of the Jacobians of small random models."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.redundancy.files import write_measurements

    set_arithmetic(snakemake.threads)
    write_measurements(snakemake.input.shapes, snakemake.params.seed, snakemake.output[0])
