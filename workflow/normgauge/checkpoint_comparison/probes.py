"""Probe sets: short lists of single tokens with a matched control, read from a versioned file and
looked up in a pair's vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from normgauge.anatomy.structure import Anatomy, NormKind, Role, SpaceKind
from normgauge.calibration.tokenisation import find_tokenizer, load_tokenizer
from normgauge.checkpoint_comparison.factors import Mode, final_norm, gain
from normgauge.checkpoint_comparison.pair import Pair, Side
from normgauge.errors import InputError
from normgauge.yaml_files import read_yaml

FEWEST = 4  # tokens below which a set says nothing
VERSION = 1
KEYS = {"tokens", "ordered", "control", "query", "form_of"}  # of a set


@dataclass(frozen=True)
class ProbeSet:
    """Tokens found in the vocabulary (`ids`, `tokens`), whether their order means something, the
    control's name, the name of the set that asks for this one in contrasts of attention, itself
    without one, and the name of the set of which this one is another form, token by token.
    """

    name: str
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    ordered: bool = False
    control: str | None = None
    query: str | None = None
    form_of: str | None = None


def read_probes(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """The sets of a probe file by name: {tokens, ordered, control, query, form_of}. Raises
    InputError for a file that is no YAML, another version, a set that is not of this form, and a
    control, query or form_of that is no set.
    """
    name = Path(path).name
    content = read_yaml(path)
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise InputError(
            f"{name}: version is {content.get('version') if isinstance(content, dict) else None}, "
            f"expected {VERSION}; update the file"
        )
    sets = content.get("sets")
    if not isinstance(sets, dict):
        raise InputError(f"{name}: sets: expected sets of tokens by name; mend the file")
    for probe, entry in sets.items():
        _check_set(f"{name}: sets.{probe}", entry, sets)
    return sets


def _check_set(where: str, entry: Any, sets: Mapping[str, Any]) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("tokens"), list):
        raise InputError(f"{where}: expected a list under tokens; mend the file")
    if unknown := sorted(set(map(str, entry)) - KEYS):
        raise InputError(f"{where}.{unknown[0]}: unknown key; expected {', '.join(sorted(KEYS))}")
    for token in entry["tokens"]:
        if not isinstance(token, str) or not token:
            raise InputError(f"{where}.tokens: {token!r} is no text; put it in quotes")
    if not isinstance(entry.get("ordered", False), bool):
        raise InputError(f"{where}.ordered: {entry['ordered']!r}; expected true or false")
    for key in ("control", "query", "form_of"):
        if key in entry and (not isinstance(entry[key], str) or entry[key] not in sets):
            raise InputError(f"{where}.{key}: {entry[key]} is no set of the file; name one")


def find_probes(
    sets: Mapping[str, Mapping[str, Any]],
    folder: str | os.PathLike[str],
    pair: Pair,
    declared: str | None = None,
) -> tuple[list[ProbeSet], dict[str, tuple[str, ...]]]:
    """The sets of which at least FEWEST tokens are single tokens of the folder's tokenizer that
    have vectors in both sides, the declared
    one first, and by set what was dropped: a token without a row in the tables, or with one of
    zeros as padding has, too. None without a tokenizer or a token table. Raises InputError when no
    set is called as declared.
    """
    if declared is not None and declared not in sets:
        raise InputError(
            f"probe set {declared}: not in the file of probe sets; expected one of "
            f"{', '.join(sets)}"
        )
    if find_tokenizer(folder) is None or token_table(pair.anatomy) is None:
        return [], {name: tuple(entry["tokens"]) for name, entry in sets.items()}
    tokenizer = load_tokenizer(folder).tokenizer
    found: list[ProbeSet] = []
    dropped: dict[str, tuple[str, ...]] = {}
    for name, entry in sets.items():
        ids = {
            token: identifier
            for token in entry["tokens"]
            if (identifier := _single(tokenizer, token)) is not None
        }
        ids = {
            token: identifier for token, identifier in ids.items() if _has_vectors(pair, identifier)
        }
        kept = [
            token
            for number, token in enumerate(ids)
            if ids[token] not in list(ids.values())[:number]
        ]
        dropped[name] = tuple(token for token in entry["tokens"] if token not in kept)
        if len(kept) >= FEWEST:
            whole = bool(entry.get("ordered")) and not dropped[name]
            identifiers = tuple(ids[token] for token in kept)
            keys = {key: entry.get(key) for key in ("control", "query", "form_of")}
            found.append(ProbeSet(name, tuple(kept), identifiers, whole, **keys))
    names = {probe.name for probe in found}
    undropped: set[str | None] = {name for name in names if not dropped[name]}
    found = [
        replace(
            probe,
            control=probe.control if probe.control in names else None,
            form_of=probe.form_of if {probe.name, probe.form_of} <= undropped else None,
        )
        for probe in found
    ]
    return sorted(found, key=lambda probe: probe.name != declared), dropped


def _has_vectors(pair: Pair, identifier: int) -> bool:
    """Whether a token has a row, not of zeros, in the token table and the readout of both sides."""
    tables = {table for table in (token_table(pair.anatomy), readout_table(pair.anatomy)) if table}
    if any(identifier >= pair.anatomy.tensor(table).shape[0] for table in tables):
        return False
    return all(
        rows.any()
        for side in (pair.a, pair.b)
        for rows in (unit_reads(side, [identifier]), unit_writes(side, [identifier], Mode.FOLDED))
    )


def _single(tokenizer: Tokenizer, text: str) -> int | None:
    """The id of the one token that the text is, or None. SentencePiece puts a space before a text:
    what remains of it must be the token.
    """
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    unknown = getattr(tokenizer.model, "unk_token", None)
    if len(ids) != 1 or (unknown is not None and ids[0] == tokenizer.token_to_id(unknown)):
        return None
    return ids[0]


def token_table(anatomy: Anatomy) -> str | None:
    """The table that writes a token's vector to the primary stream, or None where there is none."""
    return next(
        (
            tensor.name
            for tensor in anatomy.tensors
            if len(tensor.axes) == 2
            and tensor.axes[0].role == Role.INDEX
            and anatomy.space(tensor.axes[0].segments[0].space).kind == SpaceKind.VOCABULARY
            and tensor.axes[1].role == Role.WRITE
            and tensor.axes[1].segments[0].space == anatomy.primary_stack.space
        ),
        None,
    )


def readout_table(anatomy: Anatomy) -> str | None:
    """The table whose rows read the stream into the vocabulary: the readout's weight, else the
    token table.
    """
    for item in anatomy.maps:
        if (
            anatomy.space(item.writes).kind == SpaceKind.VOCABULARY
            and item.reads == anatomy.primary_stack.space
            and item.input_axis == 1
        ):
            return item.weight
    return token_table(anatomy)


@dataclass(frozen=True, eq=False)
class Frame:
    """One probe set in one side's coordinates.

    `reads` (k, n + 1): unit-normalised, then centred rows of the token table, zero in the
    constant's column. `writes` (k, n): the same of the readout's rows, folded: seen through the
    norm in front of the readout. `even_reads`, `even_writes`: the nearest frames whose Gram matrix
    is the centring projection, so that no token is told from another by the geometry of the
    embeddings: under a change that knows nothing of tokens every relabelling is as likely.
    `prototype` (n + 1,): mean of the token table's unit rows, of length one.
    """

    probe: ProbeSet
    reads: np.ndarray
    writes: np.ndarray
    even_reads: np.ndarray
    even_writes: np.ndarray
    prototype: np.ndarray

    @property
    def size(self) -> int:
        return len(self.reads)


def frame(side: Side, probe: ProbeSet, mode: Mode) -> Frame:
    """The frame of a probe set. Raises InputError when a token's vector is zero."""
    units, written = unit_reads(side, probe.ids), unit_writes(side, probe.ids, mode)
    for rows in (units, written):
        if not rows.any(1).all():
            token = probe.tokens[int(np.argmin(rows.any(1)))]
            raise InputError(
                f"probe set {probe.name}: the vector of {token!r} is zero in {side.label}; leave "
                "the token out"
            )
    reads = np.column_stack([units - units.mean(0), np.zeros(len(units))])
    writes = written - written.mean(0)
    mean = units.mean(0)
    prototype = np.append(mean / max(float(np.linalg.norm(mean)), 1e-300), 0.0)
    return Frame(probe, reads, writes, _even(reads), _even(writes), prototype)


def unit_reads(side: Side, ids: Sequence[int]) -> np.ndarray:
    """(k, n): rows of the token table, of length one."""
    table = token_table(side.anatomy)
    assert table is not None
    return _unit(side.selected(table, ids))


def unit_writes(side: Side, ids: Sequence[int], mode: Mode) -> np.ndarray:
    """(k, n): rows of the readout, of length one; folded: seen through the norm in front of it."""
    table, final = readout_table(side.anatomy), final_norm(side.anatomy)
    assert table is not None
    rows = side.selected(table, ids)
    if mode == Mode.FOLDED and final is not None:
        rows = rows * gain(side, final)
        if final.kind == NormKind.LAYER_NORM:
            rows = rows - rows.mean(1, keepdims=True)
    return _unit(rows)


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)


def row_basis(rows: np.ndarray) -> np.ndarray:
    """(r, n): an orthonormal basis of the span of the rows."""
    _, values, right = np.linalg.svd(rows, full_matrices=False)
    return right[values > 1e-6 * values[0]]


def _even(rows: np.ndarray) -> np.ndarray:
    """The polar factor: nearest rows with Gram matrix I - 11^T/k."""
    left, values, right = np.linalg.svd(rows, full_matrices=False)
    keep = values > 1e-6 * values[0]
    return left[:, keep] @ right[keep]


def frames(pair: Pair, probes: Sequence[ProbeSet], mode: Mode) -> list[tuple[Frame, Frame]]:
    """The frames of every set in A and in B."""
    return [(frame(pair.a, probe, mode), frame(pair.b, probe, mode)) for probe in probes]


def set_prototypes(frames: Sequence[tuple[Frame, Frame]]) -> dict[str, np.ndarray]:
    """By the name of each set, (2, n + 1): its prototype in A and in B."""
    return {pair[0].probe.name: np.stack([frame.prototype for frame in pair]) for pair in frames}


def set_contrasts(frames: Sequence[tuple[Frame, Frame]]) -> dict[str, np.ndarray]:
    """By the name of each set that has a control, (2, n + 1): in A and in B its prototype minus its
    control's.
    """
    prototypes = set_prototypes(frames)
    controls = {pair[0].probe.name: pair[0].probe.control for pair in frames}
    return {
        name: prototypes[name] - prototypes[control]
        for name, control in controls.items()
        if control and control in prototypes
    }


def distinct_contrasts(frames: Sequence[tuple[Frame, Frame]]) -> dict[str, np.ndarray]:
    """The contrasts without those that are another one's negative: of two sets that are each
    other's control the first stands for both.
    """
    names: dict[frozenset, str] = {}
    for pair in frames:
        names.setdefault(frozenset((pair[0].probe.name, pair[0].probe.control)), pair[0].probe.name)
    return {
        name: contrast for name, contrast in set_contrasts(frames).items() if name in names.values()
    }


@dataclass(frozen=True, eq=False)
class Question:
    """Which tokens ask for which contrast, each (2, n + 1), in A and in B.

    `queries`: the prototype of the set that asks. `query_contrasts`: that minus its control's.
        `contrasts`: those of the set `probe`.
    """

    probe: str
    queries: np.ndarray
    query_contrasts: np.ndarray
    contrasts: np.ndarray


def questions(frames: Sequence[tuple[Frame, Frame]]) -> list[Question]:
    """One per set with a control whose asking set was found with a control too."""
    contrasts = set_contrasts(frames)
    prototypes = set_prototypes(frames)
    asking = {pair[0].probe.name: pair[0].probe.query or pair[0].probe.name for pair in frames}
    return [
        Question(name, prototypes[asking[name]], contrasts[asking[name]], contrast)
        for name, contrast in contrasts.items()
        if asking[name] in contrasts
    ]
