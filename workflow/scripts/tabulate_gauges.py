"""Write the study's tables from the measurements of its checkpoints."""

from _script import reporting

with reporting(snakemake):
    from normgauge.render.gauge import write_table

    for table, kind in snakemake.params.tables.items():
        write_table(table, snakemake.input[kind], snakemake.output[table], snakemake.output[f"{table}_csv"])
