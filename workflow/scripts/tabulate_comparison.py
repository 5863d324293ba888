"""Write the comparisons of all pairs as one table."""

from _script import reporting

with reporting(snakemake):
    from normgauge.render.comparison import write_summary

    given = snakemake.input
    write_summary(list(zip(given.inventories, given.alignments, given.nulls, given.decisions, strict=True)), snakemake.output)
