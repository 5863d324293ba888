"""Change coordinates of one checkpoint inside and outside its group, and compare the outputs."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    import json
    from pathlib import Path

    from normgauge.signed_permutation.study import Measured, measure_equivalence

    set_arithmetic(snakemake.threads)
    params, given = snakemake.params, snakemake.input
    manifest = json.loads(Path(given.manifest).read_text(encoding="utf-8"))
    measured = Measured(given.checkpoint, manifest, given.calibration, params.entry.get("config"))
    measure_equivalence(
        measured,
        snakemake.output[0],
        params.seeds,
        params.forward_dtypes,
        params.sequences,
        params.length,
    )
