"""Every parquet schema, declared once; checked writing and reading.

Each field carries a description and a unit in its metadata; docs/data.md is generated from here (`python -m normgauge.tables`),
and a test holds the two together. Files hold no timestamps and no absolute paths: the same inputs give the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from normgauge.errors import InputError
from normgauge.provenance import atomic_path

STRING, INT, FLOAT, BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
STRINGS, INTS = pa.list_(pa.string()), pa.list_(pa.int32())


def _schema(*fields: tuple[str, pa.DataType, str] | tuple[str, pa.DataType, str, str]) -> pa.Schema:
    """Fields as (name, type, description[, unit]); every field may be null unless the description starts with '!'."""
    built = []
    for name, kind, description, *unit in fields:
        required = description.startswith("!")
        metadata = {"description": description.lstrip("!"), "unit": unit[0] if unit else ""}
        built.append(pa.field(name, kind, nullable=not required, metadata=metadata))
    return pa.schema(built)


_PLACE = (
    ("site", STRING, "!site id, e.g. decoder/block.3/output"),
    ("stack", STRING, "!residual stream: encoder or decoder"),
    ("block", INT, "!0 for the embedding, 1..L for blocks, L+1 for the terminal norm"),
    ("tap", STRING, "!embedding, output, after_attention, after_cross_attention, terminal_norm, or the Schur site's name"),
    ("norm", STRING, "norm whose output the activation is, if any"),
    ("n", INT, "!samples (token positions)", "tokens"),
    ("d", INT, "!width of the site", "coordinates"),
    ("forward_dtype", STRING, "!arithmetic of the forward pass"),
    ("accumulation", STRING, "!cov32, cov64 or tsqr64"),
)

_SPECTRUM = (
    ("sigma_min", FLOAT, "!smallest singular value of the centred activations, not divided by sqrt(n)", "activation"),
    ("sigma_active_min", FLOAT, "smallest singular value above both floors; null when none is", "activation"),
    ("sigma_max", FLOAT, "!largest singular value of the centred activations", "activation"),
    ("active_rank", INT, "!number of singular values above both floors", "directions"),
    ("effective_rank", FLOAT, "!exp of the entropy of the normalised singular values", "directions"),
    ("null_dimension", INT, "!number of singular values at or below the larger floor", "directions"),
    ("cos_gamma_inv", FLOAT, "|cos| of the bottom singular vector with 1/gamma (with the zero-gain axes where gains are zero)"),
    ("cos_ones", FLOAT, "!|cos| of the bottom singular vector with the all-ones vector"),
    ("null_cos_gamma_inv", FLOAT, "length of the projection of 1/gamma onto the directions at or below the floor"),
    ("relative_gamma_inv", FLOAT, "|X_centred v| / sigma_max along v = 1/gamma"),
    ("cos_beta_gamma_inv", FLOAT, "|cos| of the norm's bias with 1/gamma; null without bias"),
    ("gamma", STRING, "norm whose gain is used for 1/gamma (the site's own, else the terminal norm)"),
    ("raw_sigma_min", FLOAT, "!sigma_min of the uncentred activations", "activation"),
    ("raw_sigma_active_min", FLOAT, "sigma_active_min of the uncentred activations", "activation"),
    ("raw_sigma_max", FLOAT, "!sigma_max of the uncentred activations", "activation"),
    ("raw_active_rank", INT, "!active_rank of the uncentred activations", "directions"),
    ("raw_effective_rank", FLOAT, "!effective_rank of the uncentred activations", "directions"),
    ("raw_cos_gamma_inv", FLOAT, "cos_gamma_inv of the uncentred activations"),
    ("raw_cos_ones", FLOAT, "!cos_ones of the uncentred activations"),
    ("ratio_to_embedding", FLOAT, "sigma_active_min over the embedding's; null when either is null"),
    ("forward_floor", FLOAT, "!raw_sigma_max times the unit roundoff of the forward pass", "activation"),
    ("accumulator_floor", FLOAT, "!sigma_max times sqrt(eps) of a covariance accumulator, or d eps of the orthogonal one", "activation"),
    ("flags", STRINGS, "!what limits the row; the flags are listed in docs/method.md"),
)

_SCHUR = (
    ("lambda_min", FLOAT, "!smallest eigenvalue of A = X^T X / n, uncentred", "activation squared"),
    ("quadratic_form", FLOAT, "u^T A u with u = (1/gamma)/|1/gamma|; null where no norm feeds the site", "activation squared"),
    ("delta", FLOAT, "1 - lambda_min / (u^T A u); null where no norm feeds the site or rounding made u^T A u negative"),
    (
        "delta_recovered",
        FLOAT,
        "delta, or 1 - |lambda_min| / |u^T A u| where rounding made both negative (published recovery)",
    ),
    ("recovered", BOOL, "!whether the recovery applied (both negative, above -1e-4)"),
    ("axis_minimum", FLOAT, "!smallest diagonal entry of A: the best axis-aligned direction", "activation squared"),
    ("floor", FLOAT, "!eigenvalue floor: the larger of the forward and accumulator floors, squared, over n", "activation squared"),
    ("below_floor", BOOL, "!whether lambda_min or u^T A u lies at or below the floor, so that delta is noise"),
    ("flags", STRINGS, "!as in fingerprint"),
)

_STACK = (
    ("model", STRING, "!model id"),
    ("revision", STRING, "!revision"),
    ("stack", STRING, "!residual stream"),
    ("primary", BOOL, "!whether it is the stream that ends in the model's output"),
    ("family", STRING, "!architecture family"),
    ("provenance", STRING, "!published, trained here, or random initialisation"),
    ("precision", STRING, "!stored precision: full, half or quantised"),
    ("objective", STRING, "training objective, from the model table"),
    ("placement", STRING, "!pre-norm, post-norm, sandwich or parallel pre-norm"),
    ("norm_kind_parameters", STRING, "!norm kind read from the stored parameters alone"),
    ("norm_kind_activations", STRING, "!norm kind read from activations alone"),
    ("norm_kinds_agree", BOOL, "!whether the two agree"),
    ("blocks", INT, "!L", "blocks"),
    ("width", INT, "!h", "coordinates"),
    ("n", INT, "!samples", "tokens"),
    ("n_over_d", FLOAT, "!samples per coordinate", "tokens per coordinate"),
    ("forward_dtype", STRING, "!arithmetic of the forward pass"),
    ("accumulation", STRING, "!accumulation method of the block outputs"),
    ("body_sigma_low", FLOAT, "smallest sigma_active_min over X_1..X_L", "activation"),
    ("body_sigma_high", FLOAT, "largest sigma_active_min over X_1..X_L", "activation"),
    ("behaviour", STRING, "!depth-invariant, intermediate-dip, depth-decreasing, undetermined (reason), or not applicable (post-norm)"),
    ("min_ratio", FLOAT, "smallest ratio_to_embedding over X_1..X_L"),
    ("min_ratio_block", INT, "block of min_ratio"),
    ("max_ratio", FLOAT, "largest ratio_to_embedding over X_1..X_L"),
    ("output_ratio", FLOAT, "ratio_to_embedding of X_L"),
    ("post_norm_ratio", FLOAT, "ratio of sigma_active_min after the terminal norm to the embedding's"),
    ("post_norm_forward_dtype", STRING, "forward arithmetic behind the post-norm columns: the most accurate one captured"),
    (
        "post_norm_cos_gamma_inv",
        FLOAT,
        "|cos(u_bot, 1/gamma)| after the terminal norm (post-norm: at the last block output); with the null directions if several",
    ),
    ("post_norm_null_dimension", INT, "directions at or below the floor there; above 1 the bottom one is not determined", "directions"),
    ("post_norm_cos_ones", FLOAT, "|cos(u_bot, 1)| at the same place"),
    ("post_norm_raw_cos_gamma_inv", FLOAT, "the uncentred counterpart"),
    ("post_norm_cos_beta_gamma_inv", FLOAT, "|cos(beta, 1/gamma)| of that norm"),
    ("random_direction_null", FLOAT, "!1/sqrt(width): the cosine of two random directions"),
    ("protocol", STRINGS, "!failed protocol checks, empty when all pass"),
    ("flags", STRINGS, "!flags of the rows behind this one"),
)

_SEED = (("seed", INT, "!initialisation seed"),)

_IDENTITY = (
    ("model", STRING, "!model id"),
    ("revision", STRING, "!revision; pooled random initialisations are joined by +"),
    ("stack", STRING, "!residual stream"),
    ("norm_kind", STRING, "!norm kind, from the stored parameters"),
    ("placement", STRING, "!norm placement"),
    ("provenance", STRING, "!published, trained here, or random initialisation"),
    ("precision", STRING, "!stored precision: full, half or quantised"),
    ("stored_as", STRING, "!number format that holds most of the stored values"),
)

_ARITHMETIC = (
    ("forward_dtype", STRING, "!arithmetic of the forward pass"),
    ("accumulation", STRING, "!accumulation method"),
)

_KIND = (
    ("kind", STRING, "!trained or re-initialised"),
    ("seed", INT, "initialisation seed; null for the checkpoint itself"),
)

_STATUS = "!against the published row: reproduced, deviates, below floor, not measured, or not published"
_DEVIATIONS = "!columns whose value differs from the published one by more than its tolerance"

_RECOVERY_MAP = (
    ("tensor", STRING, "!tensor name"),
    ("dtype", STRING, "!storage grid: float32, float16 or bfloat16"),
    ("population", STRING, "!what the tensor is: no norm, behind a LayerNorm, behind an RMSNorm, norm, embedding, not observed"),
    ("argument", STRING, "!what determines it: least squares, gauge line and lattice, two-parameter least squares, ..., or none"),
    ("gauge_dimension", INT, "!directions that the observations do not see and the grid does not fix", "directions"),
    ("values", INT, "!stored values", "values"),
    ("determined", INT, "!values with a recovered grid point, claimed or flagged", "values"),
    ("recovered", INT, "!claimed values whose bits are the stored ones", "values"),
    ("flagged", INT, "!values not claimed because their margin is below 4", "values"),
    ("misses", INT, "!claimed values whose bits differ from the stored ones", "values"),
    ("min_margin", FLOAT, "least distance from a rounding boundary; null when nothing is determined", "noises"),
    ("norm", STRING, "norm whose output the map reads, or the tensor's own norm"),
    ("null_rank", INT, "directions that the design [X, 1] does not see", "directions"),
    ("null_cosine", FLOAT, "cosine of the measured null vector with (1/g, -C)"),
    ("relative_residual", FLOAT, "largest residual deviation of an output over its root mean square"),
    ("draws", INT, "lattices that the search took", "lattices"),
    ("score", FLOAT, "worst rounding residual over the well determined coordinates", "ulp"),
    ("log10_null", FLOAT, "log10 of the probability that a wrong place on the line passes, the largest over columns"),
    ("reason", STRING, "why values are undetermined, where any are"),
    ("seconds", FLOAT, "!time of the solver", "s"),
)

_RECOVERY_NULL = (
    ("low", FLOAT, "!lower end of the bin of the residual at a wrong place", "ulp"),
    ("high", FLOAT, "!upper end of the bin", "ulp"),
    ("count", INT, "!residuals of certified columns at random wrong places", "residuals"),
)

_CHECKPOINT = (
    ("model", STRING, "!model id"),
    ("revision", STRING, "!revision"),
)

SCHEMAS: dict[str, pa.Schema] = {
    "corpus": _schema(
        ("document", INT, "!number of the document"),
        ("name", STRING, "!where in the corpus it stands"),
        ("text", STRING, "text of the document; null for images"),
        ("payload", pa.binary(), "bytes of the document when it is not text"),
        ("sha256", STRING, "!sha256 of the text or payload"),
    ),
    "calibration": _schema(
        ("sequence", INT, "!number of the sequence"),
        ("kind", STRING, "!ids, audio-noise, image, image-noise or token-grid"),
        ("ids", INTS, "token ids (flattened for a token grid); null for images"),
        ("columns", INT, "!columns of a token grid, 1 for plain ids"),
        ("seed", INT, "generator seed of noise inputs"),
        ("source", STRING, "!where the input comes from"),
        ("payload", pa.binary(), "image bytes as stored in the corpus"),
        ("sha256", STRING, "!sha256 of what enters the model for this sequence"),
    ),
    "norms": _schema(
        ("norm", STRING, "!module path of the norm"),
        ("kind", STRING, "!LayerNorm or RMSNorm, by the class that applies it"),
        ("space", STRING, "!space it normalises"),
        ("eps", FLOAT, "!epsilon under the root"),
        ("gain", pa.list_(pa.float64()), "!effective gain (Gemma: 1 + w), all ones where the norm has none"),
        ("bias", pa.list_(pa.float64()), "bias; null where the norm has none"),
    ),
    "fingerprint": _schema(*_PLACE, *_SPECTRUM),
    "schur": _schema(*_PLACE, *_SCHUR),
    "stacks": _schema(*_STACK),
    "summary": _schema(*_STACK),
    "reinitialised_fingerprint": _schema(*_SEED, *_PLACE, *_SPECTRUM),
    "reinitialised_schur": _schema(*_SEED, *_PLACE, *_SCHUR),
    "reinitialised_stacks": _schema(*_SEED, *_STACK),
    "recovery_map": _schema(*_RECOVERY_MAP),
    "recovery_certificates": _schema(
        ("module", STRING, "!linear module"),
        ("column", INT, "!output column"),
        ("method", STRING, "!sieve (every candidate) or walk (three gaps)"),
        ("candidates", INT, "!places on the line that were tried", "places"),
        ("survivors", INT, "!places at which every coordinate is on the grid", "places"),
        ("half_width", FLOAT, "!half the searched window of alpha"),
        ("tolerance", FLOAT, "!how far alpha may move: min over j of half_ulp(W_j) |g_j|"),
        ("seconds", FLOAT, "!time", "s"),
    ),
    "recovery_null": _schema(*_RECOVERY_NULL),
    "recovery_stragglers": _schema(
        ("module", STRING, "!linear module"),
        ("column", INT, "!output column"),
        ("coordinates", INTS, "!undecided coordinates; fan_in is the bias"),
        ("first_margin", FLOAT, "!least margin of the joint fit", "noises"),
        ("margin", FLOAT, "!least margin after all evidence", "noises"),
        ("rows", INT, "!observations behind it", "tokens"),
        ("chunks", INT, "!fresh chunks drawn", "chunks"),
        ("within_reach", BOOL, "!whether more observations can be expected to decide it"),
        ("open", BOOL, "!whether it is still undecided and within reach"),
    ),
    "recovery_falsifier": _schema(
        ("module", STRING, "!linear module"),
        ("values", INT, "!values that the solve on permuted rows was tried on", "values"),
        ("claimed", INT, "!values that it claims", "values"),
        ("matches", INT, "!values of it that equal the stored ones", "values"),
        ("residual_ratio", FLOAT, "!its residual over that of the true pairing"),
    ),
    "recovery": _schema(*_CHECKPOINT, *_RECOVERY_MAP),
    "recovery_calibration": _schema(
        *_CHECKPOINT,
        *_RECOVERY_NULL,
        ("score", FLOAT, "worst rounding residual at the recovered places of the checkpoint", "ulp"),
    ),
    "table1": _schema(
        *_IDENTITY,
        ("width", INT, "!h", "coordinates"),
        ("n", INT, "!samples", "tokens"),
        *_ARITHMETIC,
        ("random_seeds", INT, "!initialisations pooled", "seeds"),
        ("random_values", INT, "!values pooled: one per block and seed", "values"),
        ("random_median", FLOAT, "median of delta_recovered at the query/key/value input over blocks and seeds"),
        ("random_low", FLOAT, "first quartile"),
        ("random_high", FLOAT, "third quartile"),
        ("random_below_floor", FLOAT, "share of the pooled values that lie below their floor", "share"),
        ("random_quadratic_form", FLOAT, "median of u^T A u over the same values", "activation squared"),
        ("random_floor", FLOAT, "median eigenvalue floor over the same values", "activation squared"),
        ("trained_values", INT, "!values pooled: one per block", "values"),
        ("trained_median", FLOAT, "median over blocks, trained checkpoint"),
        ("trained_low", FLOAT, "first quartile"),
        ("trained_high", FLOAT, "third quartile"),
        ("trained_below_floor", FLOAT, "share of the values that lie below their floor", "share"),
        ("trained_quadratic_form", FLOAT, "median of u^T A u over the same values", "activation squared"),
        ("trained_floor", FLOAT, "median eigenvalue floor over the same values", "activation squared"),
        ("published_random_median", FLOAT, "published median at random initialisation"),
        ("published_random_low", FLOAT, "published first quartile"),
        ("published_random_high", FLOAT, "published third quartile"),
        ("published_trained_median", FLOAT, "published trained value"),
        ("random_status", STRING, _STATUS),
        ("trained_status", STRING, _STATUS),
        ("deviations", STRINGS, _DEVIATIONS),
    ),
    "table2": _schema(
        ("kind", STRING, "!trained, re-initialised (the same architecture from seeds), or random initialisation (a model known only so)"),
        ("seeds", INT, "!initialisations pooled: medians of numbers, counts of words; 0 for a checkpoint", "seeds"),
        ("stored_as", STRING, "!number format that holds most of the stored values"),
        *_STACK,
        ("published_blocks", INT, "published L", "blocks"),
        ("published_width", INT, "published h", "coordinates"),
        ("published_n_over_d", FLOAT, "published samples per coordinate", "tokens per coordinate"),
        ("published_body_sigma_low", FLOAT, "published smallest body sigma", "activation"),
        ("published_body_sigma_high", FLOAT, "published largest body sigma", "activation"),
        ("published_behaviour", STRING, "published behaviour"),
        ("published_post_norm_cos_gamma_inv", FLOAT, "published |cos(u_bot, 1/gamma)|"),
        ("published_post_norm_cos_ones", FLOAT, "published |cos(u_bot, 1)|"),
        ("status", STRING, _STATUS),
        ("deviations", STRINGS, _DEVIATIONS),
    ),
    "trained_vs_random": _schema(
        *_IDENTITY,
        ("blocks", INT, "!L", "blocks"),
        ("width", INT, "!h", "coordinates"),
        ("n", INT, "!samples", "tokens"),
        *_ARITHMETIC,
        ("random_seeds", INT, "!re-initialisations", "seeds"),
        ("trained_max_ratio", FLOAT, "largest sigma ratio over blocks, trained"),
        ("random_max_ratio", FLOAT, "median over seeds of the largest ratio, re-initialised"),
        ("random_max_ratio_low", FLOAT, "smallest over seeds"),
        ("random_max_ratio_high", FLOAT, "largest over seeds"),
        ("trained_min_ratio", FLOAT, "smallest sigma ratio over blocks, trained"),
        ("random_min_ratio", FLOAT, "median over seeds of the smallest ratio"),
        ("trained_post_norm_ratio", FLOAT, "ratio after the terminal norm, trained"),
        ("random_post_norm_ratio", FLOAT, "median over seeds"),
        ("trained_cos_gamma_inv", FLOAT, "post-norm |cos(u_bot, 1/gamma)|, trained"),
        ("random_cos_gamma_inv", FLOAT, "median over seeds"),
        ("published_blocks", INT, "published L", "blocks"),
        ("published_trained_max_ratio", FLOAT, "published largest ratio, trained"),
        ("published_random_max_ratio", FLOAT, "published largest ratio at random initialisation"),
        ("published_trained_post_norm_ratio", FLOAT, "published post-norm ratio, trained"),
        ("published_random_post_norm_ratio", FLOAT, "published post-norm ratio at random initialisation"),
        ("status", STRING, _STATUS),
        ("deviations", STRINGS, _DEVIATIONS),
        ("notes", STRINGS, "!what limits the comparison: the flags of the checkpoint and of its twins"),
    ),
    "figure3": _schema(
        *_IDENTITY,
        *_KIND,
        ("block", INT, "!0 for the embedding, 1..L", "block"),
        ("relative_depth", FLOAT, "!block / L"),
        ("n", INT, "!samples", "tokens"),
        *_ARITHMETIC,
        ("sigma_active_min", FLOAT, "smallest active singular value", "activation"),
        ("ratio_to_embedding", FLOAT, "over the embedding's"),
        ("floor", FLOAT, "!the larger of the two floors", "activation"),
    ),
    "figure6": _schema(
        *_IDENTITY,
        *_KIND,
        ("block", INT, "!block", "block"),
        ("tap", STRING, "!Schur site"),
        ("n", INT, "!samples", "tokens"),
        *_ARITHMETIC,
        ("lambda_min", FLOAT, "!smallest eigenvalue of A", "activation squared"),
        ("quadratic_form", FLOAT, "u^T A u", "activation squared"),
        ("delta_recovered", FLOAT, "the Schur complement ratio"),
        ("floor", FLOAT, "!eigenvalue floor", "activation squared"),
        ("below_floor", BOOL, "!whether the value is noise"),
    ),
    "gauge": _schema(
        ("space", STRING, "!space or attention layer that moves"),
        ("kind", STRING, "!monomial, orthogonal or attention"),
        ("shape", INTS, "!sizes: coordinates; of an attention layer its groups, heads per group, query and value coordinates per head"),
        ("targets", INTS, "!where each coordinate goes; of an attention layer its group order, then the head order in each group"),
        ("factors", pa.list_(pa.float64()), "!what each source coordinate is multiplied by"),
        (
            "matrices",
            pa.list_(pa.float64()),
            "!row by row: the orthogonal matrix; of an attention layer its query, then its value maps",
        ),
    ),
    "equivalence": _schema(
        ("group", STRING, "!what moves, and by which group"),
        ("admissible", BOOL, "!whether the gauge belongs to the model's group; else it is a control that must change the function"),
        ("seed", INT, "!seed of the random gauge"),
        ("forward_dtype", STRING, "!arithmetic of the forward pass"),
        ("max_abs_deviation", FLOAT, "!largest absolute difference over all outputs", "logit"),
        ("relative_deviation", FLOAT, "!the same over the largest absolute output of its kind"),
        ("passed", BOOL, "!deviation within tolerance when admissible, a thousand times beyond it when not"),
    ),
    "gauge_recovery": _schema(
        ("site", STRING, "!site id"),
        ("seed", INT, "!seed of the recorded gauge"),
        ("tokens", INT, "!samples behind the correlation", "tokens"),
        ("method", STRING, "!what matched: row argmax, lapjvs or greedy, on |C| or on C"),
        ("permutation_accuracy", FLOAT, "!share of coordinates matched to their true target", "share"),
        ("sign_accuracy", FLOAT, "!share of coordinates given their true sign", "share"),
        ("min_margin", FLOAT, "!smallest margin: matched correlation minus the best rival in its row or column"),
        ("certified", BOOL, "!whether the matching is proven to be optimal"),
        ("seconds", FLOAT, "!time of the matching", "s"),
    ),
    "gauge_audit": _schema(
        ("claim", STRING, "!what names coordinates: attribution, active neurons or difference of means"),
        ("site", STRING, "!site id"),
        ("seed", INT, "!seed of the recorded gauge"),
        ("top", INT, "!coordinates named", "coordinates"),
        ("width", INT, "!width of the site", "coordinates"),
        ("raw_overlap", FLOAT, "!share of the names that stay the same", "share"),
        ("mapped_overlap", FLOAT, "!share that agree once the gauge is applied to them", "share"),
        ("chance", FLOAT, "!overlap of two random sets of that size", "share"),
        ("relative_deviation", FLOAT, "!of the outputs, as in equivalence"),
    ),
}


def write(path: str | os.PathLike[str], kind: str, rows: Sequence[Mapping[str, Any]], metadata: Mapping[str, str]) -> None:
    """Write rows as parquet of the schema `kind`, atomically, with provenance in the file's metadata.

    Raises ValueError when a row lacks a required field or has an unknown one: that is a defect of the caller.
    """
    schema = SCHEMAS[kind]
    for row in rows:
        unknown, missing = set(row) - set(schema.names), set(schema.names) - set(row)
        if unknown or missing:
            raise ValueError(f"{kind}: unknown fields {sorted(unknown)}, missing fields {sorted(missing)}")
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    for field in schema:
        if not field.nullable and table.column(field.name).null_count:
            raise ValueError(f"{kind}: field {field.name} is required but null in a row")
    write_table(path, table, {"kind": kind, **metadata})


def write_table(path: str | os.PathLike[str], table: pa.Table, metadata: Mapping[str, str]) -> None:
    """Write any arrow table atomically with string metadata under the key `normgauge`."""
    payload = json.dumps(dict(metadata), sort_keys=True).encode()
    table = table.replace_schema_metadata({b"normgauge": payload})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_table(path: str | os.PathLike[str]) -> pa.Table:
    """Read any parquet file; InputError when it is missing or not parquet."""
    try:
        return pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{Path(path)}: cannot be read as parquet ({error}); delete it and rerun") from error


def read(path: str | os.PathLike[str], kind: str) -> list[dict[str, Any]]:
    """Rows of a file written with `write(path, kind, ...)`; InputError when its schema differs."""
    table = read_table(path)
    if table.schema.names != SCHEMAS[kind].names:
        raise InputError(f"{Path(path)}: expected a {kind} table; delete it and rerun")
    return table.to_pylist()


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The provenance metadata of a file written here."""
    metadata = pq.read_schema(path).metadata or {}
    return json.loads(metadata.get(b"normgauge", b"{}"))


def write_csv(path: str | os.PathLike[str], kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """The same rows as CSV, lists joined with ';', for readers without parquet."""
    import csv

    with atomic_path(path) as temporary, open(temporary, "w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=SCHEMAS[kind].names, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: ";".join(value) if isinstance(value, list) else value for key, value in row.items()})


DICTIONARY_HEADER = """# Data dictionary

Stages meet in parquet files only (the manifest, `checkpoint.json`, is JSON). Every schema is declared once, in
`workflow/normgauge/tables.py`, and this page is printed from there (`make docs`); a test holds the two together. Each file's metadata,
under the key `normgauge`, says where it comes from: model, revision, sha256 of the weights, forward dtype, accumulation, corpus and its
hash, versions, BLAS kernel and threads. No file holds a timestamp or an absolute path.

Moments files (`moments/{forward_dtype}/{shard}-of-{shards}/{site}.parquet`) hold one column, `row`, a fixed-size list of d float64
values: first the mean, then the d rows of the centred scatter (`cov32`, `cov64`) or of the upper triangular factor R with
R^T R = scatter (`tsqr64`). n and the method are in the metadata.
"""


def data_dictionary() -> str:
    """docs/data.md, as Markdown, from the schemas."""
    lines = [DICTIONARY_HEADER]
    for kind, schema in SCHEMAS.items():
        lines += [f"## {kind}", "", "| field | type | unit | meaning |", "|---|---|---|---|"]
        for field in schema:
            metadata = {key.decode(): value.decode() for key, value in field.metadata.items()}
            lines.append(f"| {field.name} | {field.type} | {metadata['unit']} | {metadata['description'].replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(data_dictionary(), end="")
