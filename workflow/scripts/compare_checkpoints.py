"""Compare two checkpoints from their weights alone."""

from _script import reporting, set_arithmetic

with reporting(snakemake):
    import json
    from pathlib import Path

    from normgauge.checkpoint_comparison.study import compare_folders
    from normgauge.provenance import execution_environment

    set_arithmetic(snakemake.threads)
    params, given = snakemake.params, snakemake.input
    metadata = execution_environment() | {"seed": str(params.seed)}
    for side in ("a", "b"):
        manifest = json.loads(Path(given[f"manifest_{side}"]).read_text(encoding="utf-8"))
        metadata |= {
            f"{key}_{side}": manifest[key] for key in ("model", "revision", "weights_sha256")
        }
    compare_folders(
        (given.checkpoint_a, given.checkpoint_b),
        dict(snakemake.output.items()),
        (params.entry_a.get("config"), params.entry_b.get("config")),
        given.probes,
        params.probe,
        params.draws,
        params.seed,
        metadata,
    )
