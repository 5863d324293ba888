"""Try the claimed rotation on one block."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.redundancy.files import write_falsifier

    set_arithmetic(snakemake.threads)
    write_falsifier(snakemake.params.seed, snakemake.output[0])
