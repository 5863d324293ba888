"""What heads move: kernels O V of every head, between tokens and as a whole (analyses 3, 15-18, 24,
25, 27, 28).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from normgauge.checkpoint_comparison.factors import AttentionFactors, Mode
from normgauge.checkpoint_comparison.kernels import (
    Kernel,
    change,
    change_parts,
    effective_rank,
    midpoint,
    ratio,
)
from normgauge.checkpoint_comparison.ordered_sets import affine_maps, contrasts
from normgauge.checkpoint_comparison.probes import Frame, row_basis
from normgauge.checkpoint_comparison.statistics import row, two_sided

Rows = Iterator[dict[str, Any]]
PAIRS = 3  # pairs of heads of a block that are listed


def head_kernel(factors: AttentionFactors, head: int) -> Kernel:
    """O V of one head: (n, n + 1)."""
    return Kernel(factors.output[head], factors.value[factors.group(head)])


def token_kernel(factors: AttentionFactors, head: int, frame: Frame, even: bool = False) -> Kernel:
    """Z O V Z^T of one head as two thin factors, (k, d_v) and (d_v, k)."""
    whole = head_kernel(factors, head)
    if even:
        return Kernel(frame.even_writes @ whole.left, whole.right @ frame.even_reads.T)
    return Kernel(frame.writes @ whole.left, whole.right @ frame.reads.T)


def dense(kernel: Kernel) -> np.ndarray:
    """The product, (k, k): between tokens it is small."""
    return kernel.left @ kernel.right


def ov_rows(
    block: int,
    first: AttentionFactors,
    second: AttentionFactors,
    frames: Sequence[tuple[Frame, Frame]],
    mode: Mode,
) -> Rows:
    """All rows of one attention layer in one mode."""
    for head in range(first.heads):
        place: dict[str, Any] = {"block": block, "part": "attention", "head": head}
        before, after = head_kernel(first, head), head_kernel(second, head)
        moved = change(before, after)
        energies = moved.singular_values() ** 2
        energy = float(energies.sum())
        yield row("ov_energy", mode, energy, **place)
        yield row(
            "ov_relative", mode, ratio(energy, midpoint(before, after).energy()) ** 0.5, **place
        )
        yield row("ov_top_share", mode, ratio(float(energies.max()), energy), **place)
        yield row("ov_effective_rank", mode, effective_rank(energies), **place)
        parts = [part.energy() for part in change_parts(before, after)]
        yield row("ov_output_energy_share", mode, ratio(parts[0], sum(parts)), **place)
        for pair in frames:
            yield from _probe_rows(place, first, second, pair, mode)
            yield from _subspace_rows(place, moved, energy, pair, mode)
    for pair in frames:
        yield from _block_rows({"block": block, "part": "attention"}, first, second, pair, mode)
    yield from _form_rows({"block": block, "part": "attention"}, (first, second), frames, mode)


def _form_rows(
    place: dict[str, Any],
    sides: Sequence[AttentionFactors],
    frames: Sequence[tuple[Frame, Frame]],
    mode: Mode,
) -> Rows:
    """ov_copy between two forms of the same tokens, such as digits and their names, both ways."""
    by_name = {pair[0].probe.name: pair for pair in frames}
    for pair in frames:
        other = by_name.get(pair[0].probe.form_of or "")
        for reads, writes in ((pair, other), (other, pair)) if other else ():
            label = f"{reads[0].probe.name} > {writes[0].probe.name}"
            for head in range(sides[0].heads):
                values = []
                for side, read, write in zip(sides, reads, writes, strict=True):
                    kernel = head_kernel(side, head).between(write.writes, read.reads)
                    scale = np.linalg.norm(write.writes) * np.linalg.norm(read.reads)
                    values.append(float(np.trace(kernel) / scale))
                named = {**place, "head": head, "probe": pair[0].probe.name, "label": label}
                yield two_sided("ov_cross_form", mode, *values, **named)


def _probe_rows(
    place: dict[str, Any],
    first: AttentionFactors,
    second: AttentionFactors,
    pair: tuple[Frame, Frame],
    mode: Mode,
) -> Rows:
    head, place = place["head"], {**place, "probe": pair[0].probe.name}
    factors = [
        token_kernel(side, head, frame) for side, frame in zip((first, second), pair, strict=True)
    ]
    kernels = [dense(kernel) for kernel in factors]
    scales = [token_scale(frame) for frame in pair]
    copies = [np.diag(kernel) / scale for kernel, scale in zip(kernels, scales, strict=True)]
    yield two_sided("ov_copy", mode, copies[0].sum(), copies[1].sum(), **place)
    for number, token in enumerate(pair[0].probe.tokens):
        yield two_sided(
            "ov_copy_token", mode, copies[0][number], copies[1][number], label=token, **place
        )
        left_out = [
            _without(kernel, frame, number) for kernel, frame in zip(kernels, pair, strict=True)
        ]
        yield two_sided("ov_copy_without", mode, *left_out, label=token, **place)
    # each side has its own sum(Z^2): the parts are those of the normalised factors
    normalised = [
        Kernel(kernel.left / scale, kernel.right)
        for kernel, scale in zip(factors, scales, strict=True)
    ]
    for part, kernel in zip(("output", "value"), change_parts(*normalised), strict=True):
        yield row(f"ov_copy_{part}_part", mode, float(np.trace(dense(kernel))), **place)
    yield row("ov_probe_energy", mode, change(*factors).energy(), **place)
    if pair[0].probe.ordered:
        yield from _ordered_rows(place, kernels, scales, mode)
    even = [
        dense(token_kernel(side, head, frame, even=True))
        for side, frame in zip((first, second), pair, strict=True)
    ]
    yield row("ov_copy_z", mode, exact_z(even[1] - even[0]), **place)
    if pair[0].probe.ordered:
        margins = [affine_scores(kernel) / (len(kernel) - 1) for kernel in even]
        yield two_sided(
            "ov_affine_even_margin", mode, *(each[0] - each[1:].max() for each in margins), **place
        )
    symmetric = [(kernel + kernel.T) / 2 for kernel in even]
    values = [np.linalg.eigvalsh(kernel) for kernel in symmetric]
    tiny = [1e-12 * float(np.abs(value).max(initial=0)) for value in values]
    yield two_sided(
        "ov_symmetric_positive",
        mode,
        *(int((value > small).sum()) for value, small in zip(values, tiny, strict=True)),
        **place,
    )
    yield two_sided(
        "ov_symmetric_trace", mode, *(value.sum() / (len(value) - 1) for value in values), **place
    )


def exact_z(matrix: np.ndarray) -> float:
    """tr(X) sqrt(k - 1) / |X| of a (k, k) matrix whose rows and columns sum to zero: its trace over
    the exact standard deviation of the traces under all relabellings, whose mean is zero.
    """
    size = float(np.linalg.norm(matrix))
    return ratio(float(np.trace(matrix)) * (len(matrix) - 1) ** 0.5, size)


def affine_scores(kernel: np.ndarray) -> np.ndarray:
    """What a (k, k) kernel gives to each map i -> a i + b mod k, the identity first."""
    columns = np.arange(len(kernel))
    return np.array([kernel[target, columns].sum() for target in affine_maps(len(kernel))])


def token_scale(frame: Frame) -> float:
    """sum over tokens of the products of what is written and read for them: sum(Z^2) where both
    come from one table.
    """
    return float(np.linalg.norm(frame.writes) * np.linalg.norm(frame.reads))


def _without(kernel: np.ndarray, frame: Frame, number: int) -> float:
    """The copy statistic of the other tokens, centred again, over their own sum(Z^2)."""
    keep = np.delete(np.arange(len(kernel)), number)
    rest = kernel[np.ix_(keep, keep)]
    centred = rest - rest.mean(0) - rest.mean(1, keepdims=True) + rest.mean()
    writes, reads = ((rows[keep] - rows[keep].mean(0)) for rows in (frame.writes, frame.reads))
    return float(np.trace(centred) / (np.linalg.norm(writes) * np.linalg.norm(reads)))


def _ordered_rows(
    place: dict[str, Any], kernels: Sequence[np.ndarray], scales: Sequence[float], mode: Mode
) -> Rows:
    normalised = [kernel / scale for kernel, scale in zip(kernels, scales, strict=True)]
    names, basis = contrasts(len(kernels[0]))
    along = [np.einsum("ci,ij,cj->c", basis, kernel, basis) for kernel in normalised]
    for name in dict.fromkeys(names):
        members = [number for number, other in enumerate(names) if other == name]
        yield two_sided(
            "ov_contrast", mode, *(values[members].sum() for values in along), label=name, **place
        )
    scores = [affine_scores(kernel) for kernel in normalised]
    yield two_sided(
        "ov_affine_margin", mode, *(score[0] - score[1:].max() for score in scores), **place
    )
    yield two_sided(
        "ov_affine_rank", mode, *(1 + int((score > score[0]).sum()) for score in scores), **place
    )


def _subspace_rows(
    place: dict[str, Any], moved: Kernel, energy: float, pair: tuple[Frame, Frame], mode: Mode
) -> Rows:
    basis = probe_basis(pair)
    share = ratio(Kernel(basis @ moved.left, moved.right).energy(), energy)
    yield row("ov_probe_write_share", mode, share, probe=pair[0].probe.name, **place)
    yield row(
        "ov_probe_enrichment",
        mode,
        share * basis.shape[1] / len(basis),
        probe=pair[0].probe.name,
        **place,
    )


def probe_basis(pair: tuple[Frame, Frame], reads: bool = False) -> np.ndarray:
    """(r, n): an orthonormal basis of the probes' subspace, the mean of both sides' frames; of what
    is read, (r, n + 1).
    """
    first, second = ((frame.reads if reads else frame.writes) for frame in pair)
    return row_basis((first + second) / 2)


def _block_rows(
    place: dict[str, Any],
    first: AttentionFactors,
    second: AttentionFactors,
    pair: tuple[Frame, Frame],
    mode: Mode,
) -> Rows:
    place = {**place, "probe": pair[0].probe.name}
    kernels = [
        [token_kernel(side, head, frame) for head in range(first.heads)]
        for side, frame in zip((first, second), pair, strict=True)
    ]
    totals = [
        sum(float(np.trace(dense(kernel))) for kernel in heads) / token_scale(frame)
        for heads, frame in zip(kernels, pair, strict=True)
    ]
    yield two_sided("ov_copy_all_heads", mode, *totals, **place)
    changes = np.stack(
        [dense(after) - dense(before) for before, after in zip(*kernels, strict=True)]
    ).reshape(first.heads, -1)
    gram = changes @ changes.T
    yield row(
        "ov_common_share",
        mode,
        ratio(float(gram.sum()), first.heads * float(np.trace(gram))),
        **place,
    )
    lengths = np.sqrt(np.diag(gram))
    cosines = np.triu(gram / np.maximum(np.outer(lengths, lengths), 1e-300), 1)
    for index in np.argsort(-np.abs(cosines), axis=None, kind="stable")[:PAIRS]:
        one, other = divmod(int(index), first.heads)
        if cosines[one, other]:
            label = f"heads {one} and {other}"
            yield row("ov_head_cosine", mode, cosines[one, other], label=label, **place)


def sign_pattern_shares(gram: np.ndarray) -> np.ndarray:
    """Share of the head-common mode under every pattern of head signs, the first head's kept; they
    average to 1 / heads.
    """
    heads = len(gram)
    signs = np.array([(1.0, *rest) for rest in product((1.0, -1.0), repeat=heads - 1)])
    energies = np.einsum("si,ij,sj->s", signs, gram, signs)
    return energies / (heads * np.trace(gram)) if np.trace(gram) else np.zeros(len(signs))
