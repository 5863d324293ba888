"""Result tables: pure functions from measured rows to table rows, and the one writer that the workflow calls.

A `Subject` gathers what was measured on one checkpoint together with the re-initialised twins of its architecture. A model of provenance
"random initialisation" has no checkpoint of its own: its revisions are the seeds, and they are pooled as twins are.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa

from normgauge.errors import InputError
from normgauge.render import pooled
from normgauge.schemas.fingerprint import tables
from normgauge.tables import BOOL, FLOAT, STRING, STRINGS, read_metadata
from normgauge.yaml_files import read_yaml

Row = dict[str, Any]
Rows = Sequence[Row]

SCHUR_TAP = "query_key_value_input"
PROFILE_TAPS = ("embedding", "output")
RANDOM = "random initialisation"
GROWS_WITH_SAMPLES = ("body_sigma_low", "body_sigma_high")
"""Columns of singular values: they grow as sqrt(n), so they are compared per sqrt(n) and need the published n."""


@dataclass(frozen=True)
class Subject:
    """One row group of a table: a checkpoint's own rows and, with a `seed` column, those of its re-initialised twins.

    `stacks`, `fingerprint` and `schur` are empty for a model known only at random initialisation.
    """

    model: str
    revision: str
    stored_as: str
    inputs: str
    stacks: Rows = ()
    fingerprint: Rows = ()
    schur: Rows = ()
    random_stacks: Rows = ()
    random_fingerprint: Rows = ()
    random_schur: Rows = ()

    @property
    def is_random(self) -> bool:
        return not self.stacks

    def stack(self, name: str) -> Row:
        """The stack's row that names its norm, placement and precision (equal in the checkpoint and in its twins)."""
        return next(row for row in (*self.stacks, *self.random_stacks) if row["stack"] == name)

    def identity(self, stack: str) -> Row:
        row = self.stack(stack)
        return {
            "model": self.model,
            "revision": self.revision,
            "stack": stack,
            "norm_kind": row["norm_kind"],
            "placement": row["placement"],
            "provenance": row["provenance"],
            "precision": row["precision"],
            "stored_as": self.stored_as,
            "inputs": self.inputs,
        }


@dataclass(frozen=True)
class Published:
    """A published number or word: our table and column, and the difference that still counts as the same.

    n: samples (tokens) behind it, where the publication says; needed for the columns of GROWS_WITH_SAMPLES.
    """

    table: str
    row: str
    model: str
    column: str
    value: float | str
    tolerance: float
    kind: str
    n: int | None = None

    def matches(self, value: float | str, n: int | None) -> bool:
        """Whether our value, of n samples, is the published one; singular values are compared per sqrt(n)."""
        if isinstance(value, str) or isinstance(self.value, str):
            return value == self.value
        if self.column in GROWS_WITH_SAMPLES:
            if n is None or self.n is None:
                raise ValueError(f"{self.column} of {self.model}: compared per sqrt(n), so both n must be known")
            value *= math.sqrt(self.n / n)
        return abs(value - self.value) <= self.tolerance


def read_published(path: str | os.PathLike[str]) -> list[Published]:
    """The records of config/published.yaml, each with the n that `samples` gives its row.

    Raises InputError naming the file and the record or row that is wrong, and for a record of a singular value whose row has
    no n.
    """
    document = read_yaml(path) or {}
    samples = _samples(path, document.get("samples", []))
    published = []
    for number, record in enumerate(document.get("published", []), 1):
        try:
            record = Published(**record, n=samples.get((record["table"], record["row"])))
        except (TypeError, KeyError) as error:
            expected = ", ".join(name for name in Published.__dataclass_fields__ if name != "n")
            raise InputError(f"{Path(path)}: record {number} of published must have exactly the keys {expected} ({error})") from error
        if record.column in GROWS_WITH_SAMPLES and record.n is None:
            raise InputError(
                f"{Path(path)}: {record.column} of {record.row} grows with the number of samples; "
                f"state the published one under samples, table {record.table}"
            )
        published.append(record)
    return published


def _samples(path: str | os.PathLike[str], entries: Sequence[Any]) -> dict[tuple[str, str], int]:
    """(table, row) -> published number of samples."""
    samples = {}
    for number, entry in enumerate(entries, 1):
        keys = {"table", "row", "n", "source"}
        if not isinstance(entry, dict) or set(entry) != keys or not isinstance(entry["n"], int) or entry["n"] < 1:
            expected = "the keys table, row, n (a positive number) and source"
            raise InputError(f"{Path(path)}: entry {number} of samples must have exactly {expected}, got {entry}")
        samples[entry["table"], entry["row"]] = entry["n"]
    return samples


def read_subjects(inputs: Iterable[str | os.PathLike[str]], kinds: Sequence[str]) -> list[Subject]:
    """Subjects from the files of any number of result folders, in the order of their first file.

    `kinds` are the measurements needed besides `stacks`: fingerprint, schur. Every folder must bring checkpoint.json, stacks.parquet, those
    measurements, and, unless it is a random initialisation, the same under reinitialised/. InputError names the file that is missing.
    """
    folders: dict[Path, dict[str, Path]] = {}
    for path in map(Path, inputs):
        twin = path.parent.name == "reinitialised"
        folders.setdefault(path.parent.parent if twin else path.parent, {})[f"reinitialised_{path.stem}" if twin else path.stem] = path
    measured = [_measured(folder, files, ("stacks", *kinds)) for folder, files in folders.items()]
    initialised: dict[str, list[Subject]] = {}
    for subject in measured:
        if subject.is_random:
            initialised.setdefault(subject.model, []).append(subject)
    pooled = {model: _pool_revisions(subjects) for model, subjects in initialised.items()}
    subjects = []
    for subject in measured:
        if not subject.is_random:
            subjects.append(subject)
        elif subject.model in pooled:
            subjects.append(pooled.pop(subject.model))
    return subjects


def _measured(folder: Path, files: Mapping[str, Path], kinds: Sequence[str]) -> Subject:
    manifest = json.loads(_require(folder, files, "checkpoint").read_text())
    stored = manifest["stored_dtypes"]
    labels: dict[str, Any] = {
        "model": manifest["model"],
        "revision": manifest["revision"],
        "stored_as": max(sorted(stored), key=stored.__getitem__),
        "inputs": _inputs(manifest, read_metadata(_require(folder, files, "stacks"))),
    }
    own: dict[str, Any] = {kind: tables.read(_require(folder, files, kind), kind) for kind in kinds}
    if manifest["provenance"] == RANDOM:
        seed = int(manifest["revision"].removeprefix("seed"))
        initialised: dict[str, Any] = {f"random_{kind}": [{"seed": seed, **row} for row in rows] for kind, rows in own.items()}
        return Subject(**labels, **initialised)
    for kind in kinds:
        twin = f"reinitialised_{kind}"
        own[f"random_{kind}"] = tables.read(_require(folder, files, twin), twin)
    return Subject(**labels, **own)


def _inputs(manifest: Mapping[str, Any], measured: Mapping[str, str]) -> str:
    """What the model read: the corpus, and behind which token where the calibration says so."""
    heard = "noise as audio, " if manifest["modality"] == "audio" else ""
    begun = f", behind token {ids}" if (ids := measured.get("calibration_bos_ids")) else ""
    return f"{heard}{manifest['calibration']}{begun}"


def _require(folder: Path, files: Mapping[str, Path], kind: str) -> Path:
    if kind not in files:
        name = "checkpoint.json" if kind == "checkpoint" else f"{kind.replace('reinitialised_', 'reinitialised/')}.parquet"
        raise InputError(f"{folder / name}: not among the inputs of the table; add it to them")
    return files[kind]


def _pool_revisions(subjects: Sequence[Subject]) -> Subject:
    first = subjects[0]
    return Subject(
        model=first.model,
        revision="+".join(subject.revision for subject in subjects),
        stored_as=first.stored_as,
        inputs=first.inputs,
        random_stacks=[row for subject in subjects for row in subject.random_stacks],
        random_fingerprint=[row for subject in subjects for row in subject.random_fingerprint],
        random_schur=[row for subject in subjects for row in subject.random_schur],
    )


def _compare(
    published: Sequence[Published], table: str, model: str, row: Mapping[str, Any], columns: Sequence[str]
) -> tuple[str, list[str]]:
    """Status of a row against the published numbers of these columns, and the columns that deviate. Settings are not compared."""
    records = [
        record
        for record in published
        if (record.table, record.model) == (table, model) and record.column in columns and record.kind != "setting"
    ]
    if not records:
        return "not published", []
    deviations = [
        record.column for record in records if row[record.column] is not None and not record.matches(row[record.column], row["n"])
    ]
    if deviations:
        return "deviates", deviations
    return ("not measured" if any(row[record.column] is None for record in records) else "reproduced"), []


def _published_values(published: Sequence[Published], table: str, model: str | None, columns: Sequence[str]) -> Row:
    values = {record.column: record.value for record in published if (record.table, record.model) == (table, model)}
    return {f"published_{column}": values.get(column) for column in columns}


def _published_columns(table: str) -> list[str]:
    """Our columns that have a published counterpart: what is derived from those (n, per sqrt(n)) is not one."""
    names = [name.removeprefix("published_") for name in tables.schemas[table].names if name.startswith("published_")]
    return [name for name in names if name != "n" and not name.endswith("_per_sqrt_n")]


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def table1(subjects: Sequence[Subject], published: Sequence[Published]) -> list[Row]:
    """Schur delta at the query/key/value input, pooled over blocks (and seeds), one row per stack and forward arithmetic."""
    rows = []
    for subject in subjects:
        trained = [row for row in subject.schur if row["tap"] == SCHUR_TAP]
        random = [row for row in subject.random_schur if row["tap"] == SCHUR_TAP]
        for stack, dtype in _unique((row["stack"], row["forward_dtype"]) for row in (*trained, *random)):
            rows.append(_table1_row(subject, stack, dtype, _at(trained, stack, dtype), _at(random, stack, dtype), published))
    return rows


def _at(rows: Rows, stack: str, dtype: str) -> list[Row]:
    return [row for row in rows if (row["stack"], row["forward_dtype"]) == (stack, dtype)]


def _table1_row(subject: Subject, stack: str, dtype: str, trained: Rows, random: Rows, published: Sequence[Published]) -> Row:
    first = (*trained, *random)[0]
    row: Row = {
        **subject.identity(stack),
        "width": first["d"],
        "n": first["n"],
        "forward_dtype": dtype,
        "accumulation": first["accumulation"],
        "random_seeds": len({each["seed"] for each in random}),
        **_delta_statistics("random", random),
        **_delta_statistics("trained", trained),
    }
    resolved = [each | {"delta": known_delta(each)} for each in random if each["delta_recovered"] is not None]
    row["random_median_seed_low"], row["random_median_seed_high"] = pooled.over_seeds(resolved, "delta")
    model = subject.model if subject.stack(stack)["primary"] else None
    row |= _published_values(published, "table1", model, _published_columns("table1"))
    deviations: list[str] = []
    for part in ("random", "trained"):
        columns = [f"{part}_{statistic}" for statistic in ("median", "low", "high")]
        if not any(row.get(f"published_{column}") is not None for column in columns):
            status = "not published"
        elif mostly_below_floor(row, part):
            status = "below floor"
        elif row[f"{part}_median"] is None:
            status = "not measured"
        else:
            status, differing = _compare(published, "table1", subject.model, row, [*columns, "width"])
            if row[f"{part}_lower_bound"] and all(_may_still_reach(row, column) for column in differing):
                status, differing = ("lower bound" if differing else status), []
            deviations += [column for column in differing if column not in deviations]
        row[f"{part}_status"] = status
    return row | {"deviations": deviations}


def _may_still_reach(row: Row, column: str) -> bool:
    """Whether a value that is a lower bound lies below the published one, so that it does not speak against it."""
    published = row.get(f"published_{column}")
    return published is not None and row[column] < published


def known_delta(row: Row) -> float:
    """delta of a schur row, or its lower bound where no more is known."""
    return float(row["delta_recovered"] if row["delta_lower"] is None else row["delta_lower"])


def _delta_statistics(part: str, rows: Rows) -> Row:
    """Median and quartiles of delta where it is defined, the share below floor, the eigenvalue scale beside its floor, and the prediction.

    A lower bound counts as its value: the median is then one as well, unless all bounds lie above it, where the true values would too.
    """
    defined = [row | {"delta": known_delta(row)} for row in rows if row["delta_recovered"] is not None]
    low, median, high = _percentiles(row["delta"] for row in defined)
    bounds = [row["delta_lower"] for row in defined if row["delta_lower"] is not None]
    ratio = pooled.median(defined, "predicted_ratio")
    return {
        f"{part}_values": len(defined),
        f"{part}_median": median,
        f"{part}_median_se": pooled.median_error(defined, "delta"),
        f"{part}_lower_bound": median is not None and any(bound <= median for bound in bounds),
        f"{part}_predicted": None if ratio is None else 1 - ratio,
        f"{part}_predicted_se": pooled.median_error(defined, "predicted_ratio"),
        f"{part}_mahalanobis_squared": pooled.median(defined, "mahalanobis_squared"),
        f"{part}_mahalanobis_squared_se": pooled.median_error(defined, "mahalanobis_squared"),
        f"{part}_bottom_cos_gamma_inv": pooled.median(defined, "bottom_cos_gamma_inv"),
        f"{part}_bottom_cos_gamma_inv_se": pooled.median_error(defined, "bottom_cos_gamma_inv"),
        f"{part}_low": low,
        f"{part}_high": high,
        f"{part}_below_floor": _mean(float(row["below_floor"]) for row in defined),
        f"{part}_quadratic_form": pooled.median(defined, "quadratic_form"),
        f"{part}_floor": pooled.median(defined, "floor"),
    }


def mostly_below_floor(row: Mapping[str, Any], part: str) -> bool:
    """Whether the median of this part ("random", "trained") of a table-1 row rests on noise: half of its values or more are below floor."""
    share = row[f"{part}_below_floor"]
    return share is not None and share >= 0.5


def _percentiles(values: Iterable[float]) -> tuple[float | None, float | None, float | None]:
    collected = list(values)
    if not collected:
        return None, None, None
    low, median, high = numpy.percentile(collected, (25, 50, 75))
    return float(low), float(median), float(high)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(numpy.median(known)) if known else None


def _mean(values: Iterable[float]) -> float | None:
    collected = list(values)
    return float(numpy.mean(collected)) if collected else None


def table2(subjects: Sequence[Subject], published: Sequence[Published]) -> list[Row]:
    """Residual-stream fingerprint: a row per stack of each checkpoint, followed by one that pools its re-initialised twins."""
    rows = []
    for subject in subjects:
        names = _unique((row["stack"], row["forward_dtype"]) for row in (*subject.stacks, *subject.random_stacks))
        for stack, dtype in names:
            for own in _at(subject.stacks, stack, dtype):
                rows.append(_table2_row(subject, "trained", 0, own, published) | _seed_ranges(()))
            twins = _at(subject.random_stacks, stack, dtype)
            if twins:
                kind = RANDOM if subject.is_random else "re-initialised"
                seeds = len({row["seed"] for row in twins})
                rows.append(_table2_row(subject, kind, seeds, _pool_stacks(twins), published) | _seed_ranges(twins))
    return rows


def _seed_ranges(twins: Rows) -> Row:
    """The smallest and the largest over seeds of the numbers that table 2 prints."""
    columns = ("body_sigma_low", "body_sigma_high", "post_norm_cos_gamma_inv", "post_norm_cos_ones")
    ends = {column: pooled.over_seeds(twins, column) for column in columns}
    return {f"{column}_seed_{end}": value for column, pair in ends.items() for end, value in zip(("low", "high"), pair, strict=True)}


def _table2_row(subject: Subject, kind: str, seeds: int, stack: Row, published: Sequence[Published]) -> Row:
    own = {name: value for name, value in stack.items() if name in tables.schemas["table2"].names}
    row = {**own, "model": subject.model, "revision": subject.revision, "kind": kind, "seeds": seeds}
    row |= {"stored_as": subject.stored_as, "inputs": subject.inputs}
    columns = _published_columns("table2")
    model = subject.model if kind == "trained" and stack["primary"] else None
    row |= _published_values(published, "table2", model, columns)
    row |= _per_root_n(row, published, model)
    status, deviations = _compare(published, "table2", model or "", row, columns)
    return row | {"status": status, "deviations": deviations}


def _per_root_n(row: Row, published: Sequence[Published], model: str | None) -> Row:
    """The singular values of a table-2 row over sqrt(n), ours and the published ones with their own n."""
    numbers = {record.n for record in published if (record.table, record.model) == ("table2", model)}
    published_n = next(iter(numbers - {None}), None)
    return {"published_n": published_n} | {
        f"{prefix}{column}_per_sqrt_n": _over_root(row[f"{prefix}{column}"], n)
        for prefix, n in (("", row["n"]), ("published_", published_n))
        for column in GROWS_WITH_SAMPLES
    }


def _over_root(value: float | None, n: int | None) -> float | None:
    return None if value is None or n is None else value / math.sqrt(n)


def _pool_stacks(rows: Rows) -> Row:
    """One row of the stacks schema from several seeds: medians of numbers with the errors of these, words with their counts where
    seeds differ, the union of lists.

    An integer stays only where all seeds agree, a truth only where it holds for all.
    """
    fields = [field for field in tables.schemas["stacks"] if field.name not in {"group_samples", "replicates"}]
    found = {field.name: _pool_values(field.type, [row[field.name] for row in rows]) for field in fields}
    errors = [name for name in found if name.endswith("_se")]
    return found | {name: pooled.median_error(rows, name.removesuffix("_se")) for name in errors}


def _pool_values(kind: pa.DataType, values: Sequence[Any]) -> Any:
    if kind == FLOAT:
        return _median(values)
    if kind == STRINGS:
        return sorted({item for value in values for item in value})
    if kind == BOOL:
        return all(values)
    counts = Counter(values)
    if len(counts) == 1:
        return values[0]
    if kind == STRING:
        return ", ".join(
            f"{word} ({count}/{len(values)})" for word, count in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
        )
    return None


def trained_vs_random(subjects: Sequence[Subject], published: Sequence[Published]) -> list[Row]:
    """Growth of the smallest active singular value in trained checkpoints against their re-initialised twins, one row per stack."""
    rows = []
    for subject in subjects:
        for stack in subject.stacks:
            twins = _at(subject.random_stacks, stack["stack"], stack["forward_dtype"])
            rows.append(_trained_vs_random_row(subject, stack, twins, published))
    return rows


def _trained_vs_random_row(subject: Subject, stack: Row, twins: Rows, published: Sequence[Published]) -> Row:
    names = ("max_ratio", "min_ratio", "fixed_rank_max_ratio", "fixed_rank_min_ratio", "post_norm_ratio")
    compared = {**{name: name for name in names}, "cos_gamma_inv": "post_norm_cos_gamma_inv"}
    row: Row = {
        **subject.identity(stack["stack"]),
        **{name: stack[name] for name in ("blocks", "width", "n", "forward_dtype", "accumulation")},
        "random_seeds": len({twin["seed"] for twin in twins}),
        "notes": sorted({flag for each in (stack, *twins) for flag in each["flags"]}),
    }
    for name, column in compared.items():
        row |= {f"trained_{name}": stack[column], f"trained_{name}_se": stack[f"{column}_se"]}
        row |= {f"random_{name}": pooled.median(twins, column), f"random_{name}_se": pooled.median_error(twins, column)}
        row[f"random_{name}_seed_low"], row[f"random_{name}_seed_high"] = pooled.over_seeds(twins, column)
    columns = _published_columns("trained_vs_random")
    model = subject.model if stack["primary"] else None
    row |= _published_values(published, "trained_vs_random", model, columns)
    status, deviations = _compare(published, "trained_vs_random", model or "", row, columns)
    return row | {"status": status, "deviations": deviations}


def figure3(subjects: Sequence[Subject]) -> list[Row]:
    """Depth profile of the smallest active singular value: a row per stack, block, forward arithmetic and seed."""
    rows = []
    for subject in subjects:
        for kind, row in _labelled(subject.fingerprint, subject.random_fingerprint):
            if row["tap"] in PROFILE_TAPS:
                rows.append(
                    {
                        **subject.identity(row["stack"]),
                        "kind": kind,
                        "seed": row.get("seed"),
                        "relative_depth": row["block"] / subject.stack(row["stack"])["blocks"],
                        "floor": max(row["forward_floor"], row["accumulator_floor"]),
                        **{
                            name: row[name]
                            for name in (
                                "block",
                                "n",
                                "forward_dtype",
                                "accumulation",
                                "sigma_active_min",
                                "sigma_active_min_se",
                                "ratio_to_embedding",
                                "ratio_to_embedding_se",
                                "fixed_rank_ratio",
                                "fixed_rank_ratio_se",
                            )
                        },
                    }
                )
    return rows


def figure6(subjects: Sequence[Subject]) -> list[Row]:
    """Schur values by block: a row per Schur site, forward arithmetic and seed."""
    copied = (
        "block",
        "tap",
        "n",
        "forward_dtype",
        "accumulation",
        "lambda_min",
        "lambda_min_se",
        "quadratic_form",
        "quadratic_form_se",
        "delta_recovered",
        "delta_lower",
        "predicted_quadratic_form",
        "mahalanobis_squared",
        "predicted_ratio",
        "delta_se",
        "predicted_ratio_se",
        "predicted_ratio_low",
        "bottom_cos_gamma_inv",
        "floor",
        "below_floor",
    )
    return [
        {**subject.identity(row["stack"]), "kind": kind, "seed": row.get("seed"), **{name: row[name] for name in copied}}
        for subject in subjects
        for kind, row in _labelled(subject.schur, subject.random_schur)
    ]


def _labelled(trained: Rows, random: Rows) -> list[tuple[str, Row]]:
    return [*(("trained", row) for row in trained), *(("re-initialised", row) for row in random)]


@dataclass(frozen=True)
class _Recipe:
    kinds: tuple[str, ...]
    build: Callable[[Sequence[Subject], Sequence[Published]], list[Row]]


_RECIPES = {
    "table1": _Recipe(("schur",), table1),
    "table2": _Recipe((), table2),
    "trained_vs_random": _Recipe((), trained_vs_random),
    "figure3": _Recipe(("fingerprint",), lambda subjects, _: figure3(subjects)),
    "figure6": _Recipe(("schur",), lambda subjects, _: figure6(subjects)),
}


def write_table(
    name: str,
    inputs: Iterable[str | os.PathLike[str]],
    published: str | os.PathLike[str],
    parquet: str | os.PathLike[str],
    csv: str | os.PathLike[str],
) -> None:
    """Build the table `name` (a key of tables.schemas) from result files and write it as parquet and CSV.

    `inputs` are the files of the result folders, in the order in which the models shall appear; files the table does not need are ignored.
    `published` is config/published.yaml. Raises InputError when a needed file is missing or is not what its name says.
    """
    recipe = _RECIPES[name]
    records = read_published(published)
    rows = recipe.build(read_subjects(inputs, recipe.kinds), records)
    tables.write(parquet, name, rows, {})
    tables.write_csv(csv, name, rows)
