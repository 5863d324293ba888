"""Spectra of what maps write and read (analyses 2, 4, 23): covariances of stacked changes, by layer
and pooled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.linalg import eigh

from normgauge.checkpoint_comparison.factors import (
    AttentionFactors,
    FeedForwardFactors,
    Mode,
    gain,
)
from normgauge.checkpoint_comparison.kernels import effective_rank, ratio, top_share
from normgauge.checkpoint_comparison.nulls import contrast_space
from normgauge.checkpoint_comparison.ov import probe_basis
from normgauge.checkpoint_comparison.pair import Side
from normgauge.checkpoint_comparison.probes import Frame
from normgauge.checkpoint_comparison.statistics import row, two_sided

Rows = Iterator[dict[str, Any]]
TOPS = (1, 4, 16)
TOKENS = 5  # tokens named per leading axis
ENDS = 2  # of them at each end
SINGULAR = 1e12  # condition of a Gram matrix that has no gains


def written(factors: AttentionFactors | FeedForwardFactors) -> np.ndarray:
    """(m, n): all that a layer writes, a row per value coordinate of each head or per unit."""
    if isinstance(factors, FeedForwardFactors):
        return factors.down
    return factors.output.transpose(0, 2, 1).reshape(-1, factors.output.shape[1])


def read(factors: AttentionFactors | FeedForwardFactors) -> tuple[np.ndarray, ...]:
    """Each (m, n): what a layer reads, its queries and keys, or its gates and ups, without the
    constant's column.
    """
    if isinstance(factors, FeedForwardFactors):
        return tuple(part[:, :-1] for part in factors.reads)
    return tuple(part.reshape(-1, part.shape[-1])[:, :-1] for part in (factors.query, factors.key))


def covariance(rows: np.ndarray) -> np.ndarray:
    """rows^T rows over its trace, (n, n); zero for no change. The stream is narrow, the layers are
    many: these are pooled.
    """
    total = float((rows**2).sum())
    return rows.T @ rows / total if total else np.zeros((rows.shape[1], rows.shape[1]))


def spectra_rows(
    block: int,
    part: str,
    first: AttentionFactors | FeedForwardFactors,
    second: AttentionFactors | FeedForwardFactors,
    frames: Sequence[tuple[Frame, Frame]],
    mode: Mode,
) -> tuple[list[dict[str, Any]], np.ndarray, np.ndarray]:
    """(rows of one layer in one mode, covariance (n, n) of the change of what it writes, its
    leading axis (n,)).
    """
    place: dict[str, Any] = {"block": block, "part": part}
    writes = covariance(written(second) - written(first))
    reads = [
        covariance(after - before) for before, after in zip(read(first), read(second), strict=True)
    ]
    reading = np.mean(reads, axis=0)
    values, axes = np.linalg.eigh(writes)
    values = np.maximum(values, 0)
    rows = [
        row("write_top_share", mode, top_share(values, top), label=str(top), **place)
        for top in TOPS
    ]
    rows.append(row("write_effective_rank", mode, effective_rank(values), **place))
    rows.append(
        row(
            "read_effective_rank",
            mode,
            effective_rank(np.maximum(np.linalg.eigvalsh(reading), 0)),
            **place,
        )
    )
    for pair in frames:
        name = pair[0].probe.name
        rows.append(
            row("write_probe_share", mode, _share(writes, probe_basis(pair)), probe=name, **place)
        )
        rows.append(
            row(
                "read_probe_share",
                mode,
                _share(reading, probe_basis(pair, reads=True)[:, :-1]),
                probe=name,
                **place,
            )
        )
        rows.append(row("gram_gain", mode, gram_gain(first, second, pair), probe=name, **place))
        logs = gain_logs(first, second, pair)
        if logs is not None:
            largest, width = float(np.abs(logs).max()), float(np.ptp(logs)) / 2
            rows.append(row("gram_gain_largest", mode, largest, probe=name, **place))
            rows.append(row("gram_gain_range", mode, width, probe=name, **place))
    return rows, writes, axes[:, -1]


def _share(covariance: np.ndarray, basis: np.ndarray) -> float:
    return ratio(
        float(np.einsum("ri,ij,rj->", basis, covariance, basis)), float(np.trace(covariance))
    )


def gram_gain(
    first: AttentionFactors | FeedForwardFactors,
    second: AttentionFactors | FeedForwardFactors,
    pair: tuple[Frame, Frame],
) -> float:
    """log of the geometric mean of the gains from A to B over all directions of the probe subspace,
    of the keys or ups.
    """
    grams = []
    for side, frame in zip((first, second), pair, strict=True):
        seen = read(side)[-1] @ frame.reads[:, :-1].T
        values = np.linalg.eigvalsh(seen.T @ seen)[1:]  # the constant over tokens is no direction
        grams.append(np.log(np.maximum(values, 1e-300)).sum())
    return float(grams[1] - grams[0]) / (2 * (pair[0].size - 1))


def gain_logs(
    first: AttentionFactors | FeedForwardFactors,
    second: AttentionFactors | FeedForwardFactors,
    pair: tuple[Frame, Frame],
) -> np.ndarray | None:
    """(k - 1,): logs of the gains from A to B along the generalised eigenvectors of the Gram
    matrices of keys or ups over the contrasts of the tokens; None where one of these is singular.
    """
    grams = []
    for side, frame in zip((first, second), pair, strict=True):
        seen = read(side)[-1] @ frame.reads[:, :-1].T
        grams.append(contrast_space(seen.T @ seen))
    if any(np.linalg.cond(gram) > SINGULAR for gram in grams):
        return None
    if np.array_equal(grams[0], grams[1]):
        return np.zeros(len(grams[0]))
    return np.log(eigh(grams[1], grams[0], eigvals_only=True)) / 2


def pooled_rows(covariances: Mapping[str, np.ndarray], mode: Mode) -> Rows:
    """By part, the sum of its layers' covariances, each with trace one."""
    for part, pooled in covariances.items():
        values = np.maximum(np.linalg.eigvalsh(pooled), 0)
        for top in TOPS:
            yield row("pooled_write_share", mode, top_share(values, top), part=part, label=str(top))


def token_rows(
    places: Sequence[tuple[int, str]], cosines: np.ndarray, names: Mapping[int, str], mode: Mode
) -> Rows:
    """The tokens nearest to each layer's leading axis; `cosines` is (vocabulary, layers)."""
    for (block, part), signed in zip(places, cosines.T, strict=True):
        column = np.abs(signed)
        far = float(np.sign(signed[column.argmax()]))
        order = np.argsort(-far * signed, kind="stable")
        for token in (*order[:ENDS], *order[-ENDS:]):
            if column[token]:
                label = names.get(int(token), f"#{token}")
                value = far * signed[token]
                yield row("write_axis_end", mode, value, block=block, part=part, label=label)
        for token in np.argsort(-column, kind="stable")[:TOKENS]:
            if column[token]:
                label = names.get(int(token), f"#{token}")
                yield row(
                    "write_axis_token", mode, column[token], block=block, part=part, label=label
                )


def norm_rows(sides: Sequence[Side], mode: Mode) -> Rows:
    """The range of the effective gains of every norm, by size."""
    for norm in sides[0].anatomy.norms:
        if norm.gain:
            sizes = [np.abs(gain(side, norm)) for side in sides]
            for name, end in (("least", np.min), ("most", np.max)):
                values = [float(end(each)) for each in sizes]
                yield two_sided(f"norm_gain_{name}", mode, *values, part="norm", label=norm.name)
