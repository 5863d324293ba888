"""Draw the study's tables and figures."""

from _script import reporting

with reporting(snakemake):
    from normgauge.render.drawing import draw

    made = snakemake.output
    for figure, table in snakemake.params.figures.items():
        draw(figure, snakemake.input[table], [made[f"{figure}_pdf"], made[f"{figure}_svg"]])
