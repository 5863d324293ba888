"""Write one table of the study from the measurements of its checkpoints."""

from _script import reporting

with reporting(snakemake):
    from normgauge.render.tables import write_table

    write_table(
        snakemake.params.table,
        snakemake.input.measured,
        snakemake.input.published,
        snakemake.output.parquet,
        snakemake.output.csv,
    )
