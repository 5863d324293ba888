"""What heads attend to: kernels Q^T R K of every head at offsets, between prototypes and contrasts
(analyses 6, 9-13, 18, 22).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from normgauge.checkpoint_comparison.factors import AttentionFactors, Mode
from normgauge.checkpoint_comparison.kernels import Kernel, change, change_parts, midpoint, ratio
from normgauge.checkpoint_comparison.ov import head_kernel
from normgauge.checkpoint_comparison.probes import Frame, Question, questions
from normgauge.checkpoint_comparison.statistics import row, two_sided

Rows = Iterator[dict[str, Any]]
Sides = tuple[AttentionFactors, AttentionFactors]
OFFSETS = (0, 1, 4, 16, 64)
RANKS = (1, 4, 16)
PAIRS = 3  # pairs of tokens that are listed per head, set and offset


def rotated(keys: np.ndarray, frequencies: np.ndarray | None, offset: float) -> np.ndarray:
    """Key rows (d_h, n), or their products with n vectors, as a query that stands `offset`
    positions later sees them; unchanged without rotary positions.
    """
    if frequencies is None or not offset:
        return keys
    half = len(frequencies)
    cosine, sine = np.cos(offset * frequencies)[:, None], np.sin(offset * frequencies)[:, None]
    first, second = keys[:half], keys[half : 2 * half]
    return np.concatenate(
        [cosine * first + sine * second, cosine * second - sine * first, keys[2 * half :]]
    )


def score_kernel(
    factors: AttentionFactors, head: int, frequencies: np.ndarray | None = None, offset: float = 0
) -> Kernel:
    """Q^T R K of one head: (n + 1, n + 1)."""
    return Kernel(
        factors.query[head].T, rotated(factors.key[factors.group(head)], frequencies, offset)
    )


def qk_rows(
    block: int,
    first: AttentionFactors,
    second: AttentionFactors,
    frames: Sequence[tuple[Frame, Frame]],
    frequencies: np.ndarray | None,
    mode: Mode,
) -> Rows:
    """All rows of one attention layer in one mode."""
    by_name = {pair[0].probe.name: pair for pair in frames}
    asked = questions(frames)
    for head in range(first.heads):
        place: dict[str, Any] = {"block": block, "part": "attention", "head": head}
        before, after = score_kernel(first, head), score_kernel(second, head)
        energy = change(before, after).energy()
        yield row("qk_energy", mode, energy, **place)
        yield row(
            "qk_relative", mode, ratio(energy, midpoint(before, after).energy()) ** 0.5, **place
        )
        yield row("qk_radial", mode, radial_part(before, after), **place)
        for pair in frames:
            control = by_name.get(pair[0].probe.control or "")
            yield from _energy_rows(place, first, second, pair, control, mode)
        for pair in frames:
            yield from _token_rows(place, (first, second), pair, frequencies, mode)
        if asked:
            yield from _contrast_rows(place, (first, second), asked, frequencies, mode)


def _energy_rows(
    place: dict[str, Any],
    first: AttentionFactors,
    second: AttentionFactors,
    pair: tuple[Frame, Frame],
    control: tuple[Frame, Frame] | None,
    mode: Mode,
) -> Rows:
    for keys in (pair, control):
        if keys is not None:
            kernels = [
                _between(side, place["head"], queries.reads, read.reads)
                for side, queries, read in zip((first, second), pair, keys, strict=True)
            ]
            name = pair[0].probe.name
            yield row(
                "qk_cross_energy",
                mode,
                change(*kernels).energy(),
                probe=name,
                label=f"{name} > {keys[0].probe.name}",
                **place,
            )


def _token_rows(
    place: dict[str, Any],
    sides: Sides,
    pair: tuple[Frame, Frame],
    frequencies: np.ndarray | None,
    mode: Mode,
) -> Rows:
    """Of the scores between the tokens of one set, at every offset: how much of their change is one
    pair of directions, and the pairs of tokens that changed most.
    """
    probe = pair[0].probe
    for offset in OFFSETS if frequencies is not None else OFFSETS[:1]:
        scores = []
        for side, frame in zip(sides, pair, strict=True):
            kernel = _between(side, place["head"], frame.reads, frame.reads, frequencies, offset)
            scores.append(kernel.left @ kernel.right)
        moved = scores[1] - scores[0]
        energies = np.linalg.svd(moved, compute_uv=False) ** 2
        named = {**place, "probe": probe.name}
        share = ratio(float(energies.max()), float(energies.sum()))
        yield row("qk_token_top_share", mode, share, label=str(offset), **named)
        for index in np.argsort(-np.abs(moved), axis=None, kind="stable")[:PAIRS]:
            query, key = divmod(int(index), len(probe.tokens))
            label = f"{offset}: {probe.tokens[query]} > {probe.tokens[key]}"
            values = [float(each[query, key]) for each in scores]
            yield two_sided("qk_token_pair", mode, *values, label=label, **named)


def _between(
    factors: AttentionFactors,
    head: int,
    queries: np.ndarray,
    keys: np.ndarray,
    frequencies: np.ndarray | None = None,
    offset: float = 0,
) -> Kernel:
    """The kernel between rows of queries and of keys, as two thin factors."""
    return Kernel(
        queries @ factors.query[head].T,
        rotated(factors.key[factors.group(head)] @ keys.T, frequencies, offset),
    )


def radial_part(first: Kernel, second: Kernel) -> float:
    """<second - first, mean> / |mean|^2."""
    return ratio((second.energy() - first.energy()) / 2, midpoint(first, second).energy())


def _contrast_rows(
    place: dict[str, Any],
    sides: Sides,
    asked: Sequence[Question],
    frequencies: np.ndarray | None,
    mode: Mode,
) -> Rows:
    """Rows of one head. What all questions have in common, the radial parts and the truncated
    changes, is found once.
    """
    head = place["head"]
    radials = {
        offset: radial_part(*(score_kernel(side, head, frequencies, offset) for side in sides))
        for offset in (OFFSETS if frequencies is not None else OFFSETS[:1])
    }
    cut = truncated_changes(sides, head)
    for question in asked:
        named = {**place, "probe": question.probe}
        yield from _offset_rows(named, sides, question, frequencies, radials, mode)
        yield from _change_rows(named, sides, question, cut, mode)


def _offset_rows(
    place: dict[str, Any],
    sides: Sides,
    question: Question,
    frequencies: np.ndarray | None,
    radials: Mapping[int, float],
    mode: Mode,
) -> Rows:
    head = place["head"]
    queries, query_contrasts, contrasts = (
        rows[:, None] for rows in (question.queries, question.query_contrasts, question.contrasts)
    )
    for offset, radial in radials.items():
        kernels = [
            _between(side, head, query, key, frequencies, offset)
            for side, query, key in zip(sides, queries, contrasts, strict=True)
        ]
        values = [_scalar(kernel) for kernel in kernels]
        labelled = {**place, "label": str(offset)}
        yield two_sided("qk_contrast", mode, *values, **labelled)
        controlled = [
            _scalar(_between(side, head, query, key, frequencies, offset))
            for side, query, key in zip(sides, query_contrasts, contrasts, strict=True)
        ]
        yield two_sided("qk_contrast_controlled", mode, *controlled, **labelled)
        yield row(
            "qk_contrast_radial_free",
            mode,
            values[1] - values[0] - radial * (values[0] + values[1]) / 2,
            **labelled,
        )
        for part, kernel in zip(("query", "key"), change_parts(*kernels), strict=True):
            yield row(f"qk_contrast_{part}_part", mode, _scalar(kernel), **labelled)


def _change_rows(
    place: dict[str, Any],
    sides: Sides,
    question: Question,
    cut: Sequence[tuple[np.ndarray, np.ndarray]],
    mode: Mode,
) -> Rows:
    """`cut`: see `truncated_changes`."""
    head, query, contrast = place["head"], question.queries.mean(0), question.contrasts.mean(0)
    read = [
        (side.query[head] @ own) @ side.key[side.group(head)]
        for side, own in zip(sides, question.queries, strict=True)
    ]
    moved = read[1] - read[0]
    yield row(
        "qk_contrast_cosine",
        mode,
        ratio(float(moved @ contrast), float(np.linalg.norm(moved) * np.linalg.norm(contrast))),
        **place,
    )
    asked = sum(side.query[head] @ query for side in sides) / 2
    found = sum(side.key[side.group(head)] @ contrast for side in sides) / 2
    whole, *rest = (
        float((queries @ query) @ found + asked @ (keys @ contrast)) for queries, keys in cut
    )
    for rank, value in zip(RANKS, rest, strict=True):
        yield row("qk_truncated", mode, ratio(value, whole), label=f"rank {rank}", **place)


def _scalar(kernel: Kernel) -> float:
    return (kernel.left @ kernel.right).item()


def truncated_changes(sides: Sides, head: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The changes of one head's Q and K, each (d_h, n + 1): whole, then cut to each of RANKS."""
    first, second = sides
    group = first.group(head)
    changes = (second.query[head] - first.query[head], second.key[group] - first.key[group])
    parts = [np.linalg.svd(moved, full_matrices=False) for moved in changes]
    cut = [
        tuple((left[:, :rank] * values[:rank]) @ right[:rank] for left, values, right in parts)
        for rank in RANKS
    ]
    return [changes, *cut]


def composition_rows(
    readers: tuple[AttentionFactors, AttentionFactors],
    writers: tuple[AttentionFactors, AttentionFactors],
    places: tuple[int, int, int],
    frames: Sequence[tuple[Frame, Frame]],
    mode: Mode,
) -> Rows:
    """What every head of a block reads of a contrast that one head of an earlier block has moved,
    as its key and as its query; `places`: block, earlier block, head.
    """
    block, earlier, source = places
    for question in questions(frames):
        moved = [
            np.append(head_kernel(writer, source).applied(contrast), 0.0)[None]
            for writer, contrast in zip(writers, question.contrasts[:, None], strict=True)
        ]
        for head in range(readers[0].heads):
            place: dict[str, Any] = {
                "block": block,
                "part": "attention",
                "head": head,
                "probe": question.probe,
            }
            for statistic, queries, keys in (
                ("qk_composition", question.queries[:, None], moved),
                ("qk_composition_query", moved, question.queries[:, None]),
            ):
                values = [
                    _scalar(_between(reader, head, query, key))
                    for reader, query, key in zip(readers, queries, keys, strict=True)
                ]
                yield two_sided(
                    statistic, mode, *values, label=f"block {earlier} head {source}", **place
                )


def all_composition_rows(
    block: int,
    readers: Sides,
    moved: Mapping[str, tuple[np.ndarray, np.ndarray]],
    frames: Sequence[tuple[Frame, Frame]],
    mode: Mode,
) -> Rows:
    """What every head of a block reads of what all heads of earlier blocks together make of a
    contrast, and the parts of its change; `moved`: by contrast, (n,) in A and in B.
    """
    for question in questions(frames):
        if question.probe not in moved:
            continue
        keys = [np.append(each, 0.0) for each in moved[question.probe]]
        for head in range(readers[0].heads):
            place: dict[str, Any] = {
                "block": block,
                "part": "attention",
                "head": head,
                "probe": question.probe,
            }
            read = [
                (side.query[head] @ query) @ side.key[side.group(head)]
                for side, query in zip(readers, question.queries, strict=True)
            ]
            values = [float(own @ key) for own, key in zip(read, keys, strict=True)]
            yield two_sided("qk_composition_all", mode, *values, **place)
            parts = {
                "reader": (read[1] - read[0]) @ (keys[0] + keys[1]) / 2,
                "writer": (read[0] + read[1]) @ (keys[1] - keys[0]) / 2,
            }
            for name, part in parts.items():
                yield row(f"qk_composition_{name}_part", mode, part, **place)
