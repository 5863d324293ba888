"""Draw one table or figure of the study."""

from _script import reporting

with reporting(snakemake):
    from normgauge.render import figures

    getattr(figures, snakemake.params.figure)(snakemake.input[0], snakemake.output[0])
