"""Where the change is: the energy of every component's change against that of a random change of the same energy over all components.

For a kernel L R of a head, a random change dL, dR with independent entries of variance v has the expected energy
v n (|L|^2 + |R|^2), in the balanced basis 2 v n s with s the sum of singular values of L R; it is spread over the components with one v
for all, which is matched to the energy observed. On top of it comes what storage rounding alone gives each component. The statistic is the
ratio of the energy observed to the one expected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normgauge.comparison.alignment import Aligned, anchor_tables
from normgauge.comparison.factors import (
    Layer,
    Mode,
    attention_factors,
    attention_layers,
    bias,
    feed_forward_factors,
    feed_forward_layers,
    matrix,
)
from normgauge.comparison.kernels import Units, change, change_terms
from normgauge.comparison.nulls import Test, energy_ratios, largest_energy_ratios
from normgauge.comparison.ov import head_kernel
from normgauge.comparison.pair import Pair, Side
from normgauge.comparison.qk import score_kernel

NULL = "energy-matched random difference"
UNIFORM = 1.2  # 3 minus the kurtosis of a uniform variable
MEMBERS = 8  # rows of a table below which it is not tested


@dataclass(frozen=True, eq=False)
class Noise:
    """What storage rounding alone does to the energies of components: mean and variance, float64 (c,) each."""

    mean: np.ndarray
    variance: np.ndarray

    def __add__(self, other: Noise) -> Noise:
        """Of two independent roundings, what one does to the effect of the other left out."""
        return Noise(self.mean + other.mean, self.variance + other.variance + 2 * self.mean * other.mean * self._spread(other))

    def _spread(self, other: Noise) -> np.ndarray:
        scale = self.mean * other.mean
        return np.divide(np.sqrt(self.variance * other.variance), scale, out=np.zeros_like(scale), where=scale > 0)


@dataclass(frozen=True, eq=False)
class Components:
    """Components of one kind, float64 (c,) each: energies of their changes; energies that a random change of variance one is expected to
    have, and the squared relative spread of those; the rounding of both sides."""

    statistic: str
    places: list[dict[str, Any]]
    energies: np.ndarray
    susceptibilities: np.ndarray
    spreads: np.ndarray
    noise: Noise

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean, variance) of the energies under the null, with the one variance that matches the total above the rounding floor."""
        excess = max(float(self.energies.sum() - self.noise.mean.sum()), 0.0)
        total = float(self.susceptibilities.sum())
        random = (excess / total if total else 0.0) * self.susceptibilities
        return self.noise.mean + random, self.noise.variance + random**2 * self.spreads

    def ratios(self) -> tuple[np.ndarray, np.ndarray]:
        """(energy observed over energy expected, shape of its gamma law)."""
        mean, variance = self.expected()
        ratios = np.divide(self.energies, mean, out=np.zeros_like(mean), where=mean > 0)
        return ratios, np.divide(mean**2, variance, out=np.ones_like(mean), where=variance > 0)


def location_tests(aligned: Aligned, count: int, generator: np.random.Generator) -> Iterator[Test]:
    """One confirmatory test per head's O V and Q^T K kernel, per feed-forward layer and per table of the stream.

    A layer's test is that of its most changed unit, a table's that of its most changed row, against the largest of as many draws.
    """
    for components in head_components(aligned):
        for place, ratio, shape in zip(components.places, *components.ratios(), strict=True):
            draws = energy_ratios(float(shape), count, generator)
            yield Test(components.statistic, NULL, float(ratio), draws, True, place)
    units = unit_components(aligned)
    if units is not None:
        ratios, shapes = units.ratios()
        blocks = np.array([place["block"] for place in units.places])
        for block in np.unique(blocks):
            members = np.flatnonzero(blocks == block)
            strongest = members[ratios[members].argmax()]
            draws = largest_energy_ratios(shapes[members], count, generator)
            yield Test(units.statistic, NULL, float(ratios[strongest]), draws, True, units.places[strongest])
    for name in table_names(aligned.pair):
        table = table_components(aligned, name)
        ratios, shapes = table.ratios()
        place = {"part": "embedding", "token": int(ratios.argmax()), "label": name}
        draws = largest_energy_ratios(shapes, count, generator)
        yield Test(table.statistic, NULL, float(ratios.max()), draws, True, place)


def test_count(pair: Pair) -> int:
    """How many tests `location_tests` makes."""
    heads = sum(pair.anatomy.space(layer.maps["query"].writes).heads for layer in attention_layers(pair.anatomy))
    return 2 * heads + len(feed_forward_layers(pair.anatomy)) + len(table_names(pair))


def table_names(pair: Pair) -> list[str]:
    """The tables of the primary stream with enough rows to tell one from the others."""
    names = anchor_tables(pair.anatomy, pair.anatomy.primary_stack.space)
    return [name for name in names if pair.anatomy.tensor(name).shape[0] >= MEMBERS]


# --- heads


def head_components(aligned: Aligned) -> list[Components]:
    """The O V and the Q^T K kernels of all heads."""
    found = []
    kinds = (("ov_energy", head_kernel, "attention_output", "value"), ("qk_energy", score_kernel, "query", "key"))
    for statistic, kernel, many, shared in kinds:
        places, energies, susceptibilities, spreads = [], [], [], []
        noises: list[Noise] = []
        for layer in attention_layers(aligned.pair.anatomy):
            first, second = (attention_factors(side, layer, Mode.RAW) for side in (aligned.pair.a, aligned.pair.b))
            noises.append(_kernel_noise(aligned, layer, many, shared))
            for head in range(first.heads):
                pair = kernel(first, head), kernel(second, head)
                values = [each.singular_values() for each in pair]
                places.append({"block": layer.block, "part": "attention", "head": head})
                energies.append(change(*pair).energy())
                susceptibilities.append(sum(float(each.sum()) for each in values))
                spreads.append(kernel_spread(values[0] + values[1], len(pair[0].left)))
        if len(places) > 1:
            columns = [np.array(column) for column in (energies, susceptibilities, spreads)]
            found.append(Components(statistic, places, columns[0], columns[1], columns[2], _joined(noises)))
    return found


def _joined(parts: list[Noise]) -> Noise:
    return Noise(np.concatenate([part.mean for part in parts]), np.concatenate([part.variance for part in parts]))


def kernel_spread(values: np.ndarray, size: int) -> float:
    """Variance over squared mean of |dL R + L dR|^2 for a product with these singular values, in its balanced basis, dL and dR with `size`
    independent normal entries per column and row: sum s^2 / (n (sum s)^2) + 1 / n^2."""
    total = float(values.sum())
    return float((values**2).sum()) / (size * total**2) + 1 / size**2 if total else 1.0


def _by_head(side: Side, layer: Layer, part: str, floor: bool) -> np.ndarray:
    """(heads, d_h, n + 1) of queries, keys, values with their biases or, transposed, (heads, d_h, n) of the output map."""
    item = layer.maps[part]
    rows = matrix(side, item, floor)
    if part == "attention_output":
        rows = rows.T
        return rows.reshape(side.anatomy.space(layer.maps["query"].writes).heads, -1, rows.shape[1])
    rows = np.column_stack([rows, bias(side, item, floor)])
    return rows.reshape(side.anatomy.space(item.writes).heads, -1, rows.shape[1])


def _kernel_noise(aligned: Aligned, layer: Layer, many: str, shared: str) -> Noise:
    """Per head of A: what rounding both sides' factors as stored adds to the energy of the change of their product.

    The second factor is shared in its group.
    """
    order = aligned.orders[f"{layer.prefix}attention"]
    sides = (aligned.stream.a, aligned.stream.b)
    factors = [[_by_head(side, layer, part, False) for part in (many, shared)] for side in sides]
    noise = [[_by_head(side, layer, part, True) for part in (many, shared)] for side in sides]
    heads, groups = len(factors[0][0]), len(factors[0][1])
    places = (order, order[:: heads // groups] * groups // heads)
    for values in (factors, noise):
        values[1] = [value[place] for value, place in zip(values[1], places, strict=True)]
    noise = [_where_differing([side[part] for side in factors], [side[part] for side in noise]) for part in range(2)]
    return _product_noise(factors[0], [part[0] for part in noise]) + _product_noise(factors[1], [part[1] for part in noise])


def _where_differing(values: Sequence[np.ndarray], noise: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The noise of both sides, zero where their values are equal: such a value carries no rounding, or the same on both."""
    differ = values[0] != values[1]
    return [part * differ for part in noise]


def _product_noise(factors: Sequence[np.ndarray], noise: Sequence[np.ndarray]) -> Noise:
    """Per head: what rounding one side's two factors adds to the energy of their product; the second is shared in its group.

    With P = R R^T and f the variances of the entries of dL, |dL R|^2 = sum_i dl_i^T P dl_i; entries are independent and
    uniform.
    """
    means, variances = [], []
    for head in range(len(factors[0])):
        group = head * len(factors[1]) // len(factors[0])
        left, right, left_noise, right_noise = factors[0][head], factors[1][group], noise[0][head], noise[1][group]
        mean = variance = 0.0
        for own, other in ((left_noise, right), (right_noise, left)):
            gram = other @ other.T
            mean += float(own.sum(1) @ np.diag(gram))
            variance += 2 * float(np.vdot(own @ own.T, gram**2)) - UNIFORM * float((own**2).sum(1) @ np.diag(gram) ** 2)
        crossed = (left_noise @ (left**2).T) * (right_noise @ (right**2).T).T
        means.append(mean)
        variances.append(variance + 4 * float(crossed.sum()))
    return Noise(np.array(means), np.array(variances))


# --- feed-forward units


def unit_components(aligned: Aligned) -> Components | None:
    """The units of all feed-forward layers; None without any.

    Their energy is that of the terms of the exact split, each by itself: inner products between the terms are products of two sums over few
    large entries, whose tails no gamma law has.
    """
    places: list[dict[str, Any]] = []
    energies, susceptibilities, spreads = [], [], []
    noises: list[Noise] = []
    for layer in feed_forward_layers(aligned.pair.anatomy):
        sides = [_unit_factors(side, layer) for side in (aligned.pair.a, aligned.pair.b)]
        units = Units(*sides)
        parts = unit_parts(sides[0]) + unit_parts(sides[1])
        weights = parts / np.maximum(parts.sum(0), 1e-300)
        size = sides[0][0].shape[1]
        places += [{"block": layer.block, "part": "mlp", "unit": unit} for unit in range(len(sides[0][0]))]
        energies.append(units.term_energies(change_terms(units.count)))
        susceptibilities.append(parts.sum(0))
        spreads.append(2 * (weights**2).sum(0) / size)
        noises.append(_layer_noise(aligned, layer))
    if not places:
        return None
    columns = [np.concatenate(column) for column in (energies, susceptibilities, spreads)]
    return Components("mlp_unit_terms", places, columns[0], columns[1], columns[2], _joined(noises))


def _unit_factors(side: Side, layer: Layer) -> tuple[np.ndarray, ...]:
    factors = feed_forward_factors(side, layer, Mode.RAW)
    return (factors.down, *(read[:, :-1] for read in factors.reads))


def unit_parts(factors: tuple[np.ndarray, ...]) -> np.ndarray:
    """(factors, f): expected energy of the change of d (x) sym(reads) when one factor alone moves by a random vector of unit length; up and
    down are taken equally long, as a scale of the unit can make them."""
    down, reads = factors[0], factors[1:]
    length = np.linalg.norm(down, axis=1) * np.linalg.norm(reads[-1], axis=1)
    if len(reads) == 1:
        return np.stack([length, length])
    gate = (reads[0] ** 2).sum(1)
    up = (reads[1] ** 2).sum(1)
    overlap = np.divide((reads[0] * reads[1]).sum(1) ** 2, gate * up, out=np.zeros_like(gate), where=gate * up > 0)
    return np.stack([length * gate * (1 + overlap), length**2, length * gate]) / 2


def _layer_noise(aligned: Aligned, layer: Layer) -> Noise:
    """Per unit of A: what rounding both sides' rows and columns as stored adds to the energies of the terms of the change."""
    order = aligned.orders[f"{layer.prefix}ffn"]
    sides = (aligned.stream.a, aligned.stream.b)
    factors = [_rows_by_unit(side, layer, False) for side in sides]
    noise = [_rows_by_unit(side, layer, True) for side in sides]
    for values in (factors, noise):
        values[1] = [value[order] for value in values[1]]
    parts = [
        _where_differing(values, rounding) for values, rounding in zip(zip(*factors, strict=True), zip(*noise, strict=True), strict=True)
    ]
    return _unit_noise(factors[0], [part[0] for part in parts]) + _unit_noise(factors[1], [part[1] for part in parts])


def _rows_by_unit(side: Side, layer: Layer, floor: bool) -> list[np.ndarray]:
    """What each unit writes and its rows that read, float64 (f, n) each; with `floor` their rounding variances as stored."""
    reads = [matrix(side, layer.maps[part], floor) for part in ("gate", "up") if part in layer.maps]
    return [matrix(side, layer.maps["down"], floor).T, *reads]


def _unit_noise(factors: Sequence[np.ndarray], rounding: Sequence[np.ndarray]) -> Noise:
    """Per unit: what rounding one side's factors adds to the energies of the terms of d (x) sym(reads)."""
    down, *reads = factors
    down_noise, *noise = rounding
    squares, lengths = (down**2).sum(1), [(read**2).sum(1) for read in reads]
    if len(reads) == 1:
        mean = down_noise.sum(1) * lengths[0] + squares * noise[0].sum(1)
        return Noise(mean, _square_variance(down_noise, lengths[0] ** 2) + _square_variance(noise[0], squares**2))
    form = (lengths[0] * lengths[1] + (reads[0] * reads[1]).sum(1) ** 2) / 2
    mean, variance = down_noise.sum(1) * form, _square_variance(down_noise, form**2)
    for own, partner, length in ((noise[0], reads[1], lengths[1]), (noise[1], reads[0], lengths[0])):
        seen, wide = (own * partner**2).sum(1), length[:, None]
        mean = mean + squares * (own.sum(1) * length + seen) / 2
        spread = 2 * ((own**2 * (wide**2 + 2 * wide * partner**2)).sum(1) + seen**2)
        variance = variance + squares**2 / 4 * (spread - UNIFORM * (own**2 * (wide + partner**2) ** 2).sum(1))
    return Noise(mean, variance)


def _square_variance(noise: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Variance of sqrt(scale) |e|^2 for independent uniform entries e with these variances, by row."""
    return scale * (2 - UNIFORM) * (noise**2).sum(1)


# --- rows of tables


def table_components(aligned: Aligned, name: str) -> Components:
    """The rows of one table, such as the tokens of the embedding."""
    energies = np.concatenate(
        [((after - before) ** 2).sum(1) for before, after in zip(aligned.pair.a.rows(name), aligned.pair.b.rows(name), strict=True)]
    )
    noises = []
    sides = (aligned.stream.a, aligned.stream.b)
    for first, second, *floors in zip(*(side.rows(name) for side in sides), *(side.floor_rows(name) for side in sides), strict=True):
        parts = _where_differing((first, second), floors)
        variances = [_square_variance(part, np.ones(len(part))) for part in parts]
        noises.append(Noise(parts[0].sum(1) + parts[1].sum(1), variances[0] + variances[1]))
    spreads = np.full(len(energies), 2 / aligned.pair.anatomy.tensor(name).shape[1])
    return Components("table_row_energy", [], energies, np.ones_like(energies), spreads, _joined(noises))
