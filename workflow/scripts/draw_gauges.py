"""Draw the study's tables and figures."""

from _script import reporting

with reporting(snakemake):
    from normgauge.render.drawing import draw

    made = snakemake.output
    for table in snakemake.params.tables:
        draw(table, snakemake.input[table], [made[f"{table}_pdf"], made[f"{table}_svg"]])
