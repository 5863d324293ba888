"""Write recovered tensors under the headers of the checkpoint's files, and compare the files'
sha256.
"""

from _script import reporting

with reporting(snakemake):
    from pathlib import Path

    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.exact_recovery.assemble import assemble_all
    from normgauge.exact_recovery.compare import provenance
    from normgauge.schemas.exact_recovery import tables

    given, output = snakemake.input, snakemake.output
    files = open_checkpoint(given.checkpoint, snakemake.params.entry.get("config")).files
    rows = assemble_all(files, Path(given.closed) / "recovered.safetensors", Path(output.folder))
    tables.write(output.table, "recovery_assembly", rows, provenance(given.manifest))
