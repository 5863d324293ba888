"""Tests of what the change has to do with the probes: relabelled tokens, channel signs, rotations,
matched tokens, random subspaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from normgauge.checkpoint_comparison.factors import AttentionFactors, Mode
from normgauge.checkpoint_comparison.kernels import Kernel, change, ratio
from normgauge.checkpoint_comparison.nulls import (
    Test,
    contrast_space,
    matched_tokens,
    random_rotations,
    random_subspaces,
    relabelled_traces,
    relabellings,
    rotated_products,
    sign_sums,
)
from normgauge.checkpoint_comparison.ov import (
    dense,
    head_kernel,
    probe_basis,
    sign_pattern_shares,
    token_kernel,
)
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.checkpoint_comparison.probes import (
    Frame,
    Question,
    questions,
    token_table,
    unit_reads,
    unit_writes,
)
from normgauge.checkpoint_comparison.recency import symmetric_updates

Sides = tuple[AttentionFactors, AttentionFactors]
Frames = tuple[Frame, Frame]
MODE = str(Mode.FOLDED)
MOST_HEADS = 12  # heads up to which all sign patterns are listed


def copy_tests(
    layers: Iterable[tuple[int, Sides, np.ndarray | None]],
    frames: Frames,
    count: int,
    generator: np.random.Generator,
) -> Iterator[Test]:
    """Confirmatory: the copy statistic between even frames under relabelled tokens, per head and
    summed over all heads.

    One relabelling acts on all heads, whose statistics depend on each other through the tokens.
    """
    size = frames[0].size
    total, targets = np.zeros((size, size)), relabellings(size, count, generator)
    for block, sides, _ in layers:
        for head in range(sides[0].heads):
            first, second = (
                dense(token_kernel(side, head, frame, even=True))
                for side, frame in zip(sides, frames, strict=True)
            )
            total += second - first
            yield _copy_test(
                "ov_copy",
                second - first,
                targets,
                {"block": block, "part": "attention", "head": head},
                frames,
            )
    yield _copy_test("ov_copy_all_heads", total, targets, {"part": "attention"}, frames)


def _copy_test(
    statistic: str, moved: np.ndarray, targets: np.ndarray, place: dict[str, Any], frames: Frames
) -> Test:
    trace = float(np.trace(moved))
    draws = np.abs(relabelled_traces(moved, targets))
    probe = frames[0].probe.name
    place = {**place, "probe": probe, "label": MODE}
    return Test(
        statistic,
        "relabelled tokens",
        abs(trace),
        draws,
        True,
        place,
        trace,
        f"relabelled tokens of {probe}",
    )


def exploratory_tests(
    pair: Pair,
    layers: Iterable[tuple[int, Sides, np.ndarray | None]],
    frames: Sequence[Frames],
    count: int,
    generator: np.random.Generator,
) -> Iterator[Test]:
    """Per head and probe set: channel signs of the attention contrast, rotations of recency against
    transport, the probe kernel's energy against tokens of like length, and the share written into
    the probe subspace against random subspaces. `layers`: block, factors, rotary frequencies; they
    are gone through once per set.
    """
    asked = {question.probe: question for question in questions(frames)}
    for both in frames:
        basis = probe_basis(both)
        subspaces = random_subspaces(basis.shape[1], len(basis), count, generator)
        rotations = random_rotations(both[0].size - 1, count, generator)
        others = _matched_frames(pair, both, count, generator)
        question = asked.get(both[0].probe.name)
        for block, sides, frequencies in layers:
            if 1 < sides[0].heads <= MOST_HEADS:
                yield _head_sign_test(
                    sides,
                    both,
                    {
                        "block": block,
                        "part": "attention",
                        "probe": both[0].probe.name,
                        "label": MODE,
                    },
                )
            for head in range(sides[0].heads):
                place = {
                    "block": block,
                    "part": "attention",
                    "head": head,
                    "probe": both[0].probe.name,
                    "label": MODE,
                }
                if question is not None:
                    yield _sign_test(sides, head, question, place, count, generator)
                if frequencies is not None:
                    yield _rotation_test(sides, head, both, frequencies, rotations, place)
                yield _matched_test(sides, head, both, others, place)
                yield _subspace_test(sides, head, basis, subspaces, place)


def _sign_test(
    sides: Sides,
    head: int,
    question: Question,
    place: dict[str, Any],
    count: int,
    generator: np.random.Generator,
) -> Test:
    """The change of q^T Q^T K c as a sum over channels, each with a random sign."""
    terms = [
        (side.query[head] @ query) * (side.key[side.group(head)] @ contrast)
        for side, query, contrast in zip(sides, question.queries, question.contrasts, strict=True)
    ]
    moved = terms[1] - terms[0]
    return Test(
        "qk_contrast",
        "row signs",
        abs(float(moved.sum())),
        np.abs(sign_sums(moved, count, generator)),
        False,
        place,
        float(moved.sum()),
    )


def _head_sign_test(sides: Sides, both: Frames, place: dict[str, Any]) -> Test:
    """The share of the head-common mode among those of all patterns of head signs, which average to
    1 / heads.
    """
    kernels = [
        [dense(token_kernel(side, head, frame)) for head in range(side.heads)]
        for side, frame in zip(sides, both, strict=True)
    ]
    changes = (np.stack(kernels[1]) - np.stack(kernels[0])).reshape(sides[0].heads, -1)
    shares = sign_pattern_shares(changes @ changes.T)
    return Test("ov_common_share", "head signs", float(shares[0]), shares[1:], False, place)


def _rotation_test(
    sides: Sides,
    head: int,
    both: Frames,
    frequencies: np.ndarray,
    rotations: np.ndarray,
    place: dict[str, Any],
) -> Test:
    recency, transport = symmetric_updates(*sides, head, both, frequencies)
    scale = float(np.linalg.norm(recency) * np.linalg.norm(transport))
    cosine = ratio(float(np.vdot(recency, transport)), scale)
    products = rotated_products(contrast_space(recency), contrast_space(transport), rotations)
    return Test(
        "recency_transport",
        "Haar rotations",
        abs(cosine),
        np.abs(products) / scale if scale else np.zeros(len(products)),
        False,
        place,
        cosine,
        f"Haar rotations of {both[0].probe.name}",
    )


def _matched_frames(
    pair: Pair, both: Frames, count: int, generator: np.random.Generator
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For A and B, (count, k, n) unit rows of matched tokens: what the readout and what the token
    table have for them.
    """
    table = token_table(pair.anatomy)
    assert table is not None
    lengths = np.concatenate([np.linalg.norm(rows, axis=1) for rows in pair.a.rows(table)])
    ids = matched_tokens(lengths, both[0].probe.ids, count, generator)
    used, inverse = np.unique(ids, return_inverse=True)
    places = inverse.reshape(ids.shape)
    return [
        (
            unit_writes(side, used.tolist(), Mode.FOLDED)[places],
            unit_reads(side, used.tolist())[places],
        )
        for side in (pair.a, pair.b)
    ]


def _matched_test(
    sides: Sides,
    head: int,
    both: Frames,
    others: Sequence[tuple[np.ndarray, np.ndarray]],
    place: dict[str, Any],
) -> Test:
    observed = change(
        *(token_kernel(side, head, frame) for side, frame in zip(sides, both, strict=True))
    ).energy()
    parts = []
    for side, (writes, reads) in zip(sides, others, strict=True):
        kernel = head_kernel(side, head)
        left = (writes - writes.mean(1, keepdims=True)) @ kernel.left
        right = (reads - reads.mean(1, keepdims=True)) @ kernel.right[:, :-1].T
        parts.append(left @ right.transpose(0, 2, 1))
    draws = ((parts[1] - parts[0]) ** 2).sum((1, 2))
    shared = f"matched tokens of {both[0].probe.name}"
    return Test(
        "ov_probe_energy", "matched random tokens", observed, draws, False, place, shared=shared
    )


def _subspace_test(
    sides: Sides, head: int, basis: np.ndarray, subspaces: np.ndarray, place: dict[str, Any]
) -> Test:
    moved = change(*(head_kernel(side, head) for side in sides))
    total = moved.energy()
    gram = moved.right @ moved.right.T
    observed = Kernel(basis @ moved.left, moved.right).energy()
    seen = subspaces.reshape(-1, subspaces.shape[2]) @ moved.left
    draws = np.einsum("ij,ij->i", seen @ gram, seen).reshape(len(subspaces), -1).sum(1)
    scale = total or 1.0
    shared = f"subspaces of {place['probe']}"
    return Test(
        "ov_probe_write_share",
        "random subspaces",
        observed / scale,
        draws / scale,
        False,
        place,
        shared=shared,
    )
