"""Compare what two arithmetic routes recover from the same observations."""

from _script import reporting

with reporting(snakemake):
    from pathlib import Path

    from normgauge.exact_recovery.compare import provenance
    from normgauge.exact_recovery.evidence import route_rows
    from normgauge.schemas.exact_recovery import tables

    given = snakemake.input
    rows = route_rows(Path(given.first), Path(given.second))
    tables.write(snakemake.output[0], "recovery_routes", rows, provenance(given.manifest))
