"""Draw one figure of one pair, or of all pairs."""

from _script import reporting

with reporting(snakemake):
    from normgauge.render.comparison import draw

    draw(snakemake.params.figure, snakemake.input[0], snakemake.output)
