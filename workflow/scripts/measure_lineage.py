"""Which checkpoints share an initialisation, and what hides it."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.lineage.study import Hiding, write_study

    set_arithmetic(snakemake.threads)
    stored = zip(snakemake.input.checkpoints, snakemake.params.entries, strict=True)
    write_study(
        dict(zip(snakemake.params.names, stored, strict=True)),
        snakemake.params.sets,
        [Hiding(**each) for each in snakemake.params.hidden],
        snakemake.params.draws,
        dict(snakemake.output.items()),
        *snakemake.input.receptors,
    )
