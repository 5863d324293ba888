"""Match checkpoints of one shape with no gauge recorded, at growing budgets of samples."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    import json
    from pathlib import Path

    from normgauge.signed_permutation.study import Measured, measure_alignment

    set_arithmetic(snakemake.threads)
    params, given = snakemake.params, snakemake.input
    manifest = json.loads(Path(given.manifest).read_text(encoding="utf-8"))
    measured = Measured(given.checkpoint, manifest, given.calibration, params.entry.get("config"))
    others = {
        name: (folder, params.configs[name])
        for name, folder in zip(params.configs, given.others, strict=True)
    }
    measure_alignment(
        measured, snakemake.output.alignment, snakemake.output.holonomy, others, params.budgets
    )
