"""Write tables of results from the measurements that are given by what they are."""

from _script import named_files, reporting

with reporting(snakemake):
    from normgauge.render.tabulating import write_table

    made = snakemake.output
    for table in snakemake.params.tables:
        write_table(table, named_files(snakemake.input), made[table], made[f"{table}_csv"])
