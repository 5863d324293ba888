"""Write the table of controls from the tables of all studies."""

from _script import reporting

with reporting(snakemake):
    from normgauge.render.controls.table import write_table

    write_table(dict(snakemake.input.items()), snakemake.output.parquet, snakemake.output.csv)
