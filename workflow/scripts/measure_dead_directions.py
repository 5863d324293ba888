"""Measure what the fingerprint of one checkpoint hangs on."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    from normgauge.calibration.settings import Bos, Settings
    from normgauge.dead_directions.experiments import Inputs, measure_experiments

    set_arithmetic(snakemake.threads)
    given, params = snakemake.input, snakemake.params
    inputs = Inputs(
        folder=given.checkpoint,
        manifest=given.manifest,
        calibration=given.calibration,
        directions=given.directions,
        entry=params.entry,
        corpora=dict.fromkeys(params.generated) | dict(zip(params.texts, given.texts, strict=True)),
        tokenizer=given.get("tokenizer") or None,
        settings=Settings(params.sequences, params.length, params.seed, Bos(params.bos)),
        batch_size=params.batch_size,
        groups=params.jackknife_groups,
    )
    measure_experiments(inputs, params.experiments, dict(snakemake.output.items()))
