"""Compare what was recovered with what is stored: the identifiability map and its evidence."""

from _script import reporting

with reporting(snakemake):
    import json
    from pathlib import Path

    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.recovery.compare import write_comparison

    manifest = json.loads(Path(snakemake.input.manifest).read_text())
    identity = {key: manifest[key] for key in ("model", "revision", "weights_sha256")}
    checkpoint = open_checkpoint(snakemake.input.checkpoint, snakemake.params.entry.get("config"))
    write_comparison(checkpoint, identity, Path(snakemake.input.closed), dict(snakemake.output.items()))
