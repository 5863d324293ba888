"""Measure the fingerprint of every kept step of a model's runs."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.calibration.settings import Bos, Settings
    from normgauge.dead_directions.trajectory import trajectory_rows
    from normgauge.provenance import execution_environment
    from normgauge.schemas.dead_directions import tables

    set_arithmetic(snakemake.threads)
    params = snakemake.params
    rows = trajectory_rows(
        snakemake.wildcards.model,
        snakemake.input.runs,
        params.entry,
        snakemake.input.corpus or None,
        Settings(params.sequences, params.length, params.seed, Bos(params.bos)),
        params.batch_size,
        params.jackknife_groups,
    )
    tables.write(snakemake.output[0], "trajectory", rows, execution_environment())
