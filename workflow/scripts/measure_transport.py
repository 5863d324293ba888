"""Coordinates followed along runs of training, and between their ends."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.checkpoints.sources import parse_source
    from normgauge.trajectories.runs import Start
    from normgauge.trajectories.transport_study import Tuned, measure_transport

    set_arithmetic(snakemake.threads)
    given, files = snakemake.params, snakemake.input
    tuned = [
        Tuned(
            model,
            parse_source(model, entry),
            folder,
            Start({}, base, overrides, calibration, **given.probes),
        )
        for (model, entry), folder, base, overrides, calibration in zip(
            given.entries.items(),
            files.runs,
            files.base,
            given.configs,
            files.calibration,
            strict=True,
        )
    ]
    made = snakemake.output
    output = {name: {"parquet": made[name], "csv": made[f"{name}_csv"]} for name in given.tables}
    measure_transport(tuned, given.budgets, output)
