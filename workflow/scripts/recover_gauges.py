"""Apply recorded gauges to one checkpoint and find them again from activations."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    import json
    from pathlib import Path

    from normgauge.signed_permutation.study import Measured, measure_recovery

    set_arithmetic(snakemake.threads)
    params, given = snakemake.params, snakemake.input
    manifest = json.loads(Path(given.manifest).read_text(encoding="utf-8"))
    measured = Measured(given.checkpoint, manifest, given.calibration, params.entry.get("config"))
    measure_recovery(measured, snakemake.output[0], params.seeds, params.budgets)
