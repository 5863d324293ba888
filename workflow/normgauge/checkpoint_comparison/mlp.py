"""What feed-forward units read and write: paths between tokens, units, the exact split of their sum
(analyses 5, 7, 8, 14, 19, 23).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from normgauge.checkpoint_comparison.factors import (
    FeedForwardFactors,
    Layer,
    Mode,
    branch_norm,
    final_norm,
    gain,
    matrix,
)
from normgauge.checkpoint_comparison.kernels import (
    Term,
    Units,
    change_terms,
    mean_terms,
    ratio,
    top_share,
)
from normgauge.checkpoint_comparison.ov import probe_basis, token_scale
from normgauge.checkpoint_comparison.pair import Side
from normgauge.checkpoint_comparison.probes import Frame
from normgauge.checkpoint_comparison.statistics import row, two_sided

Rows = Iterator[dict[str, Any]]
LARGEST = 10  # units that are listed


def mlp_rows(
    block: int,
    first: FeedForwardFactors,
    second: FeedForwardFactors,
    frames: Sequence[tuple[Frame, Frame]],
    mode: Mode,
) -> Rows:
    """All rows of one feed-forward layer in one mode, those of its sum over units included."""
    place: dict[str, Any] = {"block": block, "part": "mlp"}
    units = Units(
        (first.down, *(read[:, :-1] for read in first.reads)),
        (second.down, *(read[:, :-1] for read in second.reads)),
    )
    terms = change_terms(units.count)
    energies = units.energies(terms)
    for unit in largest(energies):
        yield row("mlp_unit_energy", mode, energies[unit], unit=int(unit), **place)
    yield row("mlp_unit_concentration", mode, top_share(energies, LARGEST), **place)
    yield from _rescaling_rows(place, first, second, mode)
    bases = [probe_basis(pair) for pair in frames]
    projections = [(first.down @ basis.T, second.down @ basis.T) for basis in bases]
    grams = units.grams([terms, mean_terms(units.count)], projections)
    yield from _sum_rows(place, grams[:2], terms, float(energies.sum()), mode)
    for pair, gram in zip(frames, grams[2:], strict=True):
        named = {**place, "probe": pair[0].probe.name}
        yield from _path_rows(named, first, second, pair, mode)
        yield row("trilinear_probe_energy", mode, float(gram.sum()), **named)


def largest(values: np.ndarray) -> np.ndarray:
    """Indices of the LARGEST largest absolute values, in their order, without zeros."""
    order = np.argsort(-np.abs(values), kind="stable")[:LARGEST]
    return order[values[order] != 0]


def _sum_rows(
    place: dict[str, Any],
    grams: Sequence[np.ndarray],
    terms: Sequence[Term],
    unit_sum: float,
    mode: Mode,
) -> Rows:
    """`grams`: of the terms of the change, and of those of the mean."""
    gram, energy = grams[0], float(grams[0].sum())
    yield row("trilinear_energy", mode, energy, **place)
    yield row(
        "trilinear_relative",
        mode,
        ratio(energy, float(grams[1].sum())) ** 0.5,
        **place,
    )
    yield row("trilinear_unit_ratio", mode, ratio(energy, unit_sum), **place)
    for term, share in zip(terms, gram.sum(1), strict=True):
        yield row("trilinear_share", mode, ratio(float(share), energy), label=term.name, **place)


def token_paths(factors: FeedForwardFactors, frame: Frame) -> tuple[np.ndarray, np.ndarray]:
    """(f, k) each: what units write for tokens, over sum(Z^2), and what they read of them by up."""
    return factors.down @ frame.writes.T / token_scale(frame), factors.reads[-1] @ frame.reads.T


def _path_rows(
    place: dict[str, Any],
    first: FeedForwardFactors,
    second: FeedForwardFactors,
    pair: tuple[Frame, Frame],
    mode: Mode,
) -> Rows:
    sides = (first, second)
    written, read = zip(
        *(token_paths(side, frame) for side, frame in zip(sides, pair, strict=True)), strict=True
    )
    by_unit = [
        np.einsum("fk,fk->f", left, right) for left, right in zip(written, read, strict=True)
    ]
    yield two_sided("mlp_up_path", mode, *(units.sum() for units in by_unit), **place)
    moved = by_unit[1] - by_unit[0]
    for unit in largest(moved):
        yield two_sided(
            "mlp_up_path_unit", mode, *(units[unit] for units in by_unit), unit=int(unit), **place
        )
    yield row(
        "mlp_up_path_down_part",
        mode,
        np.vdot(written[1] - written[0], read[0] + read[1]) / 2,
        **place,
    )
    yield row(
        "mlp_up_path_up_part",
        mode,
        np.vdot(written[0] + written[1], read[1] - read[0]) / 2,
        **place,
    )
    if len(first.reads) < 2:
        return
    gates = [side.reads[0] @ frame.reads.T for side, frame in zip(sides, pair, strict=True)]
    yield two_sided(
        "mlp_gate_path",
        mode,
        *(np.vdot(left, right) for left, right in zip(written, gates, strict=True)),
        **place,
    )
    traces = [
        left.T @ np.einsum("fn,fn->f", side.reads[0][:, :-1], side.reads[1][:, :-1])
        for side, left in zip(sides, written, strict=True)
    ]
    for number, token in enumerate(pair[0].probe.tokens):
        yield two_sided(
            "mlp_trace", mode, traces[0][number], traces[1][number], label=token, **place
        )


def _rescaling_rows(
    place: dict[str, Any], first: FeedForwardFactors, second: FeedForwardFactors, mode: Mode
) -> Rows:
    """The direction (u, -d) in which reciprocal scales move a unit, and the direction of its down
    column.
    """
    up = ((first.reads[-1] + second.reads[-1]) / 2, second.reads[-1] - first.reads[-1])
    down = ((first.down + second.down) / 2, second.down - first.down)
    along = (up[0] * up[1]).sum(1) - (down[0] * down[1]).sum(1)
    length = (up[0] ** 2).sum(1) + (down[0] ** 2).sum(1)
    explained = float(np.divide(along**2, length, out=np.zeros_like(along), where=length > 0).sum())
    yield row(
        "mlp_rescaling_share",
        mode,
        ratio(explained, float((up[1] ** 2).sum() + (down[1] ** 2).sum())),
        **place,
    )
    stretch, squares = (down[0] * down[1]).sum(1), (down[0] ** 2).sum(1)
    radial = float(
        np.divide(stretch**2, squares, out=np.zeros_like(stretch), where=squares > 0).sum()
    )
    whole = float((down[1] ** 2).sum())
    yield row("mlp_direction_share", mode, ratio(whole - radial, whole), **place)


def factorial_rows(
    sides: tuple[Side, Side], layer: Layer, frames: Mapping[Mode, Sequence[tuple[Frame, Frame]]]
) -> Rows:
    """mlp_up_path, or of attention ov_copy over all heads, with each of the eight choices of the
    gains in front of the layer, behind it, and before the readout.
    """
    anatomy = sides[0].anatomy
    part = "mlp" if "up" in layer.maps else "attention"
    first, last = ("up", "down") if part == "mlp" else ("value", "attention_output")
    fed_by = layer.maps[first].norm
    before = anatomy.norm(fed_by) if fed_by else None
    norms = {
        "pre": before,
        "post": branch_norm(anatomy, layer, part),
        "final": final_norm(anatomy),
    }
    up, down = ([matrix(side, layer.maps[name]) for side in sides] for name in (first, last))
    if part == "attention":  # each group's values once per head that mixes them
        heads = anatomy.space(layer.maps["query"].writes).heads
        groups = anatomy.space(layer.maps["value"].writes).heads
        up = [
            np.repeat(rows.reshape(groups, -1, rows.shape[1]), heads // groups, 0).reshape(
                -1, rows.shape[1]
            )
            for rows in up
        ]
    present = [name for name, norm in norms.items() if norm is not None]
    for choice in product((False, True), repeat=len(present)):
        chosen = [name for name, taken in zip(present, choice, strict=True) if taken]
        folded = Mode.FOLDED if {"pre", "final"} & set(present) <= set(chosen) else Mode.RAW
        for pair in frames[Mode.FOLDED if "final" in chosen else Mode.RAW]:
            values = []
            for side, reads, writes, frame in zip(sides, up, down, pair, strict=True):
                scale = {
                    name: gain(side, norm)
                    for name, norm in norms.items()
                    if norm is not None and name in chosen
                }
                tokens_in, tokens_out = (
                    frame.reads[:, :-1] * scale.get("pre", 1.0),
                    frame.writes * scale.get("post", 1.0),
                )
                values.append(
                    np.vdot(tokens_out @ writes, tokens_in @ reads.T) / token_scale(frame)
                )
            place: dict[str, Any] = {
                "block": layer.block,
                "part": part,
                "probe": pair[0].probe.name,
                "label": "+".join(chosen) or "none",
            }
            statistic = "mlp_factorial" if part == "mlp" else "ov_factorial"
            yield two_sided(statistic, folded, *values, **place)
