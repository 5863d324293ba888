"""Draw one table or figure of the study."""

from _script import reporting

with reporting(snakemake):
    from normgauge.render.drawing import draw

    draw(snakemake.params.figure, snakemake.input[0], snakemake.output)
