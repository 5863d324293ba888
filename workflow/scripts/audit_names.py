"""Audit the coordinate names of one checkpoint under recorded gauges, and transport artifacts with
them.
"""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    import json
    from pathlib import Path

    from normgauge.signed_permutation.study import Measured, measure_names

    set_arithmetic(snakemake.threads)
    params, given = snakemake.params, snakemake.input
    manifest = json.loads(Path(given.manifest).read_text(encoding="utf-8"))
    measured = Measured(given.checkpoint, manifest, given.calibration, params.entry.get("config"))
    made = snakemake.output
    measure_names(
        measured,
        made.audit,
        made.transport,
        params.seeds,
        params.top,
        params.sequences,
        params.length,
    )
