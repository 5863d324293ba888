"""Learn artifacts on one checkpoint, and carry them to gauged copies or audit their names."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    import json
    from pathlib import Path

    from normgauge.signed_permutation.learned_study import Learner

    set_arithmetic(snakemake.threads)
    params, given = snakemake.params, snakemake.input
    manifest = json.loads(Path(given.manifest).read_text(encoding="utf-8"))
    learner = Learner(
        given.checkpoint,
        manifest,
        (given.prose, given.code),
        params.settings,
        params.entry.get("config"),
    )
    if params.get("artifacts"):
        learner.carry(snakemake.output[0], params.artifacts, params.seeds)
    else:
        learner.audit(snakemake.output[0], params.seeds, params.top)
