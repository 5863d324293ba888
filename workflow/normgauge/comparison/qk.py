"""What heads attend to: kernels Q^T R K of every head at offsets, between prototypes and contrasts (analyses 6, 9-13, 18, 22)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from normgauge.comparison.factors import AttentionFactors, Mode
from normgauge.comparison.kernels import Kernel, change, change_parts, midpoint, ratio
from normgauge.comparison.ov import head_kernel
from normgauge.comparison.probes import Frame, Question, questions
from normgauge.comparison.statistics import row, two_sided

Rows = Iterator[dict[str, Any]]
OFFSETS = (0, 1, 4, 16, 64)
RANKS = (1, 4, 16)


def rotated(keys: np.ndarray, frequencies: np.ndarray | None, offset: float) -> np.ndarray:
    """Key rows (d_h, n) as a query that stands `offset` positions later sees them; unchanged without rotary positions."""
    if frequencies is None or not offset:
        return keys
    half = len(frequencies)
    cosine, sine = np.cos(offset * frequencies)[:, None], np.sin(offset * frequencies)[:, None]
    first, second = keys[:half], keys[half : 2 * half]
    return np.concatenate([cosine * first + sine * second, cosine * second - sine * first, keys[2 * half :]])


def score_kernel(factors: AttentionFactors, head: int, frequencies: np.ndarray | None = None, offset: float = 0) -> Kernel:
    """Q^T R K of one head: (n + 1, n + 1)."""
    return Kernel(factors.query[head].T, rotated(factors.key[factors.group(head)], frequencies, offset))


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
        mean = midpoint(before, after).energy()
        energy = change(before, after).energy()
        radial = ratio((after.energy() - before.energy()) / 2, mean)
        yield row("qk_energy", mode, energy, **place)
        yield row("qk_relative", mode, ratio(energy, mean) ** 0.5, **place)
        yield row("qk_radial", mode, radial, **place)
        for pair in frames:
            control = by_name.get(pair[0].probe.control or "")
            yield from _energy_rows(place, first, second, pair, control, mode)
        for question in asked:
            yield from _contrast_rows(place, first, second, question, frequencies, mode)


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
            yield row("qk_cross_energy", mode, change(*kernels).energy(), probe=name, label=f"{name} > {keys[0].probe.name}", **place)


def _between(
    factors: AttentionFactors,
    head: int,
    queries: np.ndarray,
    keys: np.ndarray,
    frequencies: np.ndarray | None = None,
    offset: float = 0,
) -> Kernel:
    """The kernel between rows of queries and of keys, as two thin factors."""
    whole = score_kernel(factors, head, frequencies, offset)
    return Kernel(queries @ whole.left, whole.right @ keys.T)


def _contrast_rows(
    place: dict[str, Any],
    first: AttentionFactors,
    second: AttentionFactors,
    question: Question,
    frequencies: np.ndarray | None,
    mode: Mode,
) -> Rows:
    head, place = place["head"], {**place, "probe": question.probe}
    queries, query_contrasts, contrasts = (rows[:, None] for rows in (question.queries, question.query_contrasts, question.contrasts))
    for offset in OFFSETS if frequencies is not None else OFFSETS[:1]:
        kernels = [
            _between(side, head, query, key, frequencies, offset)
            for side, query, key in zip((first, second), queries, contrasts, strict=True)
        ]
        values = [_scalar(kernel) for kernel in kernels]
        labelled = {**place, "label": str(offset)}
        yield two_sided("qk_contrast", mode, *values, **labelled)
        controlled = [
            _scalar(_between(side, head, query, key, frequencies, offset))
            for side, query, key in zip((first, second), query_contrasts, contrasts, strict=True)
        ]
        yield two_sided("qk_contrast_controlled", mode, *controlled, **labelled)
        whole = [score_kernel(side, head, frequencies, offset) for side in (first, second)]
        radial = ratio((whole[1].energy() - whole[0].energy()) / 2, midpoint(*whole).energy())
        yield row("qk_contrast_radial_free", mode, values[1] - values[0] - radial * (values[0] + values[1]) / 2, **labelled)
        for part, kernel in zip(("query", "key"), change_parts(*kernels), strict=True):
            yield row(f"qk_contrast_{part}_part", mode, _scalar(kernel), **labelled)
    read = [(query @ side.query[head].T) @ side.key[side.group(head)] for side, query in zip((first, second), queries, strict=True)]
    moved, contrast = (read[1] - read[0])[0], ((contrasts[0] + contrasts[1]) / 2)[0]
    yield row("qk_contrast_cosine", mode, ratio(float(moved @ contrast), float(np.linalg.norm(moved) * np.linalg.norm(contrast))), **place)
    for rank, share in zip(RANKS, truncated_shares(first, second, head, (queries[0] + queries[1])[0] / 2, contrast), strict=True):
        yield row("qk_truncated", mode, share, label=f"rank {rank}", **place)


def _scalar(kernel: Kernel) -> float:
    return (kernel.left @ kernel.right).item()


def truncated_shares(first: AttentionFactors, second: AttentionFactors, head: int, query: np.ndarray, contrast: np.ndarray) -> list[float]:
    """Share of the change of query^T Q^T K contrast that is left when the changes of Q and K are cut to each of RANKS."""
    group = first.group(head)
    changes = (second.query[head] - first.query[head], second.key[group] - first.key[group])
    means = ((second.query[head] + first.query[head]) / 2, (second.key[group] + first.key[group]) / 2)

    def value(moved_query: np.ndarray, moved_key: np.ndarray) -> float:
        return float((moved_query @ query) @ (means[1] @ contrast) + (means[0] @ query) @ (moved_key @ contrast))

    whole = value(*changes)
    parts = [np.linalg.svd(moved, full_matrices=False) for moved in changes]
    cut = [[(left[:, :rank] * values[:rank]) @ right[:rank] for left, values, right in parts] for rank in RANKS]
    return [ratio(value(*pair), whole) for pair in cut]


def composition_rows(
    readers: tuple[AttentionFactors, AttentionFactors],
    writers: tuple[AttentionFactors, AttentionFactors],
    places: tuple[int, int, int],
    frames: Sequence[tuple[Frame, Frame]],
    mode: Mode,
) -> Rows:
    """What every head of a block reads of a contrast that one head of an earlier block has moved, as its key and as its query; `places`:
    block, earlier block, head."""
    block, earlier, source = places
    for question in questions(frames):
        moved = [
            np.append(head_kernel(writer, source).applied(contrast), 0.0)[None]
            for writer, contrast in zip(writers, question.contrasts[:, None], strict=True)
        ]
        for head in range(readers[0].heads):
            place: dict[str, Any] = {"block": block, "part": "attention", "head": head, "probe": question.probe}
            for statistic, queries, keys in (
                ("qk_composition", question.queries[:, None], moved),
                ("qk_composition_query", moved, question.queries[:, None]),
            ):
                values = [_scalar(_between(reader, head, query, key)) for reader, query, key in zip(readers, queries, keys, strict=True)]
                yield two_sided(statistic, mode, *values, label=f"block {earlier} head {source}", **place)
