"""Single units between tokens: motifs, what opens their gates, and which earlier heads they read
(analyses 20, 21, 29).

All is cosines and shares of squared length, of each side's own units with its own tokens: scales of
a unit drop out. The read on which the activation acts, the gate of a gated unit and the only read
of another, keeps its sign; the others' signs may be turned together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from normgauge.checkpoint_comparison.factors import AttentionFactors, FeedForwardFactors, Mode
from normgauge.checkpoint_comparison.kernels import ratio
from normgauge.checkpoint_comparison.mlp import largest, token_paths
from normgauge.checkpoint_comparison.ov import head_kernel
from normgauge.checkpoint_comparison.probes import Frame, distinct_contrasts, row_basis
from normgauge.checkpoint_comparison.statistics import two_sided

Rows = Iterator[dict[str, Any]]
Sides = tuple[FeedForwardFactors, FeedForwardFactors]
CUTOFFS = (0.75, 0.8, 0.85, 0.9)
"""Scores above which a unit is counted as a motif: the first one and stricter ones."""
READ_SHARE, WRITE_SHARE = 0.08, 0.03
"""Shares of a motif's rows that must lie in the span of the tokens: of what it reads and of what it
writes.
"""
TINY = 1e-300


def unit_length(factors: FeedForwardFactors) -> FeedForwardFactors:
    """The same units with what they read of the stream and what they write scaled to length one."""
    reads = tuple(read / _lengths(read[:, :-1]) for read in factors.reads)
    return replace(factors, reads=reads, down=factors.down / _lengths(factors.down))


def _lengths(rows: np.ndarray) -> np.ndarray:
    return np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), TINY)


@dataclass(frozen=True, eq=False)
class Profile:
    """Rows (f, n) of length one against the centred rows of k tokens.

    `templates` (f, k): cosine of a row's inner products with the tokens and the centred one-hot of
    one token. `cosines` (f, k): of the row and the token's own row. `share` (f,): share of the
    row's squared length in the span of the tokens.
    """

    templates: np.ndarray
    cosines: np.ndarray
    share: np.ndarray


def profile(rows: np.ndarray, tokens: np.ndarray) -> Profile:
    """The profile of rows (f, n) of length one on centred rows (k, n)."""
    basis = row_basis(tokens)
    inside = rows @ basis.T
    products = inside @ (basis @ tokens.T)
    templates = products / (_lengths(products) * np.sqrt(1 - 1 / len(tokens)))
    return Profile(templates, products / _lengths(tokens).T, (inside**2).sum(1))


@dataclass(frozen=True, eq=False)
class Motifs:
    """Units of one side as motifs of single tokens, (f, k) each. `scores`: see `motifs`. `writes`:
    cosine of what the unit writes with the token, turned by the sign of what its linear read has of
    it: positive where the unit writes back the token that it reads.
    """

    scores: np.ndarray
    writes: np.ndarray


def motifs(factors: FeedForwardFactors, frame: Frame) -> Motifs:
    """The score of a unit for a token is the smallest of its template cosines: that of the read on
    which the activation acts, and the sizes of the others and of what it writes. It is zero for a
    unit of which less than READ_SHARE or WRITE_SHARE has to do with the tokens. `factors` are of
    length one.
    """
    reads = [profile(read[:, :-1], frame.reads[:, :-1]) for read in factors.reads]
    write = profile(factors.down, frame.writes)
    scores = np.minimum.reduce(
        [
            np.maximum(reads[0].templates, 0),
            *(np.abs(each.templates) for each in (*reads[1:], write)),
        ]
    )
    enough = np.logical_and.reduce(
        [write.share >= WRITE_SHARE, *(read.share >= READ_SHARE for read in reads)]
    )
    return Motifs(
        np.where(enough[:, None], scores, 0.0), np.sign(reads[-1].templates) * write.cosines
    )


@dataclass(frozen=True, eq=False)
class Writer:
    """One head of an earlier block. `moved`: in A and in B, (c, n), what it makes of the distinct
    contrasts.
    """

    block: int
    head: int
    moved: tuple[np.ndarray, np.ndarray]


def writers(
    block: int,
    sides: tuple[AttentionFactors, AttentionFactors],
    frames: Sequence[tuple[Frame, Frame]],
) -> list[Writer]:
    """The heads of a block with what they make of the contrasts; none where there are no
    contrasts.
    """
    contrasts = list(distinct_contrasts(frames).values())
    if not contrasts:
        return []
    first, second = np.stack(contrasts, axis=1)
    return [
        Writer(
            block,
            head,
            (
                head_kernel(sides[0], head).applied(first),
                head_kernel(sides[1], head).applied(second),
            ),
        )
        for head in range(sides[0].heads)
    ]


def moved_by_all(
    earlier: Sequence[Writer], frames: Sequence[tuple[Frame, Frame]]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By contrast, what all earlier heads together make of it, (n,) in A and in B."""
    if not earlier:
        return {}
    sums = [np.sum([writer.moved[side] for writer in earlier], axis=0) for side in (0, 1)]
    return {
        name: (sums[0][number], sums[1][number])
        for number, name in enumerate(distinct_contrasts(frames))
    }


def motif_rows(
    block: int,
    sides: Sides,
    earlier: Sequence[Writer],
    frames: Sequence[tuple[Frame, Frame]],
    mode: Mode,
) -> Rows:
    """All rows of one feed-forward layer in one mode; `earlier`: the heads of the blocks before
    it.
    """
    place: dict[str, Any] = {"block": block, "part": "mlp"}
    first, second = (unit_length(side) for side in sides)
    gates = {
        name: [
            side.reads[0][:, :-1] @ each[:-1] / max(np.linalg.norm(each), TINY)
            for side, each in zip((first, second), contrast, strict=True)
        ]
        for name, contrast in distinct_contrasts(frames).items()
    }
    for pair in frames:
        named = {**place, "probe": pair[0].probe.name}
        yield from _motif_rows(named, (first, second), pair, mode)
        yield from _gate_rows(named, sides, pair, gates, mode)
    if earlier:
        yield from _reader_rows(place, (first, second), earlier, frames, mode)


def _motif_rows(place: dict[str, Any], sides: Sides, pair: tuple[Frame, Frame], mode: Mode) -> Rows:
    found = [motifs(side, frame) for side, frame in zip(sides, pair, strict=True)]
    for cutoff in CUTOFFS:
        counts = [int((each.scores.max(1) >= cutoff).sum()) for each in found]
        yield two_sided("mlp_motifs", mode, *counts, label=f"{cutoff:g}", **place)
    mean = (found[0].scores + found[1].scores) / 2
    for unit in largest(mean.max(1)):
        token = int(mean[unit].argmax())
        named = {**place, "unit": int(unit), "label": pair[0].probe.tokens[token]}
        yield two_sided(
            "mlp_motif_unit", mode, *(each.scores[unit, token] for each in found), **named
        )
        yield two_sided(
            "mlp_motif_write", mode, *(each.writes[unit, token] for each in found), **named
        )


def _gate_rows(
    place: dict[str, Any],
    sides: Sides,
    pair: tuple[Frame, Frame],
    gates: Mapping[str, Sequence[np.ndarray]],
    mode: Mode,
) -> Rows:
    """Cosines of gates with contrasts, units weighted by their part of mlp_up_path: of those that
    add to it, of those that take away.
    """
    paths = [
        np.einsum("fk,fk->f", *token_paths(side, frame))
        for side, frame in zip(sides, pair, strict=True)
    ]
    for name, cosines in gates.items():
        for label, sign in (("preserving", 1), ("opposing", -1)):
            means = [
                weighted_mean(cosine, np.maximum(sign * path, 0))
                for cosine, path in zip(cosines, paths, strict=True)
            ]
            yield two_sided("mlp_gate_contrast", mode, *means, label=f"{label}, {name}", **place)


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> float:
    """Mean of values (f,) by weights (f,), none negative; 0 without any weight."""
    return ratio(float(values @ weights), float(weights.sum()))


def _reader_rows(
    place: dict[str, Any],
    sides: Sides,
    earlier: Sequence[Writer],
    frames: Sequence[tuple[Frame, Frame]],
    mode: Mode,
) -> Rows:
    """How much of what earlier heads make of a contrast the units read, averaged by what they write
    of each set; the largest changes.
    """
    writes = {
        pair[0].probe.name: [
            profile(side.down, frame.writes).share for side, frame in zip(sides, pair, strict=True)
        ]
        for pair in frames
    }
    for number, name in enumerate(distinct_contrasts(frames)):
        moved = [np.stack([writer.moved[side][number] for writer in earlier]) for side in (0, 1)]
        for index, part in enumerate(("gate", "up")[-len(sides[0].reads) :]):
            shares = [
                read_shares(side.reads[index][:, :-1], rows)
                for side, rows in zip(sides, moved, strict=True)
            ]
            for probe, weights in writes.items():
                means = [
                    weighted_mean(share.sum(1), weight)
                    for share, weight in zip(shares, weights, strict=True)
                ]
                yield two_sided(
                    "mlp_reader", mode, *means, **place, probe=probe, label=f"{part}, {name}"
                )
            yield from _pair_rows({**place, "probe": name}, shares, earlier, part, mode)


def read_shares(reads: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """(f, s): squared length of s rows `moved` (s, n) along each of f rows of length one (f, n),
    over the squared length of all s.
    """
    return (reads @ moved.T) ** 2 / max(float((moved**2).sum()), TINY)


def _pair_rows(
    place: dict[str, Any],
    shares: Sequence[np.ndarray],
    earlier: Sequence[Writer],
    part: str,
    mode: Mode,
) -> Rows:
    """The pairs of a unit and an earlier head whose share changed most."""
    for index in largest((shares[1] - shares[0]).ravel()):
        unit, source = divmod(int(index), len(earlier))
        label = f"{part}, block {earlier[source].block} head {earlier[source].head}"
        yield two_sided(
            "mlp_reader_unit",
            mode,
            *(share[unit, source] for share in shares),
            unit=unit,
            label=label,
            **place,
        )
