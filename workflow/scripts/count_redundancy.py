"""Count the redundant directions of every architecture, beside what is claimed and what was
measured.
"""

from _script import reporting

with reporting(snakemake):
    from pathlib import Path

    from normgauge.redundancy.files import write_counts

    checkpoints = zip(
        snakemake.params.names,
        zip(snakemake.input.checkpoints, snakemake.params.entries, strict=True),
        strict=True,
    )
    write_counts(
        {Path(path).stem: path for path in snakemake.input.shapes},
        dict(checkpoints),
        snakemake.input.small,
        snakemake.input.jacobian,
        snakemake.input.checks,
        snakemake.input.claims,
        dict(snakemake.output.items()),
    )
