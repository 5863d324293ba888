"""Print the data dictionary: `python -m normgauge.schemas > docs/data.md`."""

from __future__ import annotations

from normgauge.schemas.registry import SCHEMAS

DICTIONARY_HEADER = """# Data dictionary

Stages meet in parquet files only (the manifest, `checkpoint.json`, is JSON). Every schema is
declared once, in `workflow/normgauge/schemas/`, a module for each study, and this page is printed
from there (`make docs`); a test holds the two together. Each file's metadata, under the key
`normgauge`, says where it comes from: model, revision, sha256 of the weights, forward dtype,
accumulation, corpus and its hash, versions, BLAS kernel and threads. No file holds a timestamp or
an absolute path.

Moments files (`moments/{shard}-of-{shards}/{forward_dtype}/{site}.parquet`) hold one column, `row`,
a fixed-size list of d float64 values: first the mean, then the d rows of the centred scatter
(`cov32`, `cov64`) or of the upper triangular factor R with R^T R = scatter (`tsqr64`). n and the
method are in the metadata.
"""


def data_dictionary() -> str:
    """docs/data.md, as Markdown, from the schemas."""
    lines = [DICTIONARY_HEADER]
    for kind, schema in SCHEMAS.items():
        lines += [f"## {kind}", "", "| field | type | unit | meaning |", "|---|---|---|---|"]
        for field in schema:
            metadata = {key.decode(): value.decode() for key, value in field.metadata.items()}
            lines.append(
                f"| {field.name} | {field.type} | {metadata['unit']} | "
                f"{metadata['description'].replace('|', chr(92) + '|')} |"
            )
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(data_dictionary(), end="")
