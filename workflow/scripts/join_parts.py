"""Make one solver's folder of those of a checkpoint's parts."""

from _script import reporting

with reporting(snakemake):
    from pathlib import Path

    from normgauge.exact_recovery.joining import join

    join([Path(folder) for folder in snakemake.input], Path(snakemake.output[0]))
