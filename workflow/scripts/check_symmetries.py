"""Check every symmetry of a checkpoint on its weights, and controls that must fail."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    import json
    from pathlib import Path

    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.redundancy.files import write_checks

    set_arithmetic(snakemake.threads)
    manifest = json.loads(Path(snakemake.input.manifest).read_text(encoding="utf-8"))
    identity = {key: manifest[key] for key in ("model", "revision", "weights_sha256")}
    checkpoint = open_checkpoint(snakemake.input.checkpoint, snakemake.params.entry.get("config"))
    write_checks(checkpoint, identity, snakemake.params.seed, snakemake.output[0])
