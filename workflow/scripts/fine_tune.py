"""Make the runs of one entry of the model table, or continue what a killed job has left."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.checkpoints.sources import parse_source
    from normgauge.trajectories.runs import Start, make_runs

    set_arithmetic(snakemake.threads)
    model, files = snakemake.wildcards.model, snakemake.input
    source = parse_source(model, snakemake.params.entry)
    start = Start(
        dict(zip(source.corpora, files.corpora, strict=True)),
        files.base or None,
        snakemake.params.config,
        files.calibration or None,
        **snakemake.params.probes,
    )
    folder = snakemake.output[0]
    make_runs(source, start, folder, folder.replace("/runs", "/unfinished"), snakemake.threads)
