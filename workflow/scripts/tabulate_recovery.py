"""Write the identifiability maps of all checkpoints as one table, and their rounding residuals at wrong places as another."""

from _script import reporting

with reporting(snakemake):
    from normgauge.render.recovery import write_tables

    write_tables(snakemake.input.maps, snakemake.input.nulls, snakemake.output)
