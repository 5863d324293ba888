"""Where the change is: the energy of every component's change against that of a random change of the same energy over all components.

For a kernel L R of a head, a random change dL, dR with independent entries of variance v has the expected energy
v n (|L|^2 + |R|^2), in the balanced basis 2 v n s with s the sum of singular values of L R; it is spread over the components with one v
for all, which is matched to the energy observed. On top of it comes what storage rounding alone gives each component. The statistic is the
ratio of the energy observed to the one expected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from normgauge.comparison.alignment import Aligned, anchor_tables
from normgauge.comparison.factors import (
    Layer,
    Mode,
    attention_factors,
    attention_layers,
    feed_forward_factors,
    feed_forward_layers,
    matrix,
)
from normgauge.comparison.kernels import Units, change, change_terms
from normgauge.comparison.nulls import EnergyLaw, Test
from normgauge.comparison.ov import head_kernel
from normgauge.comparison.pair import Pair, Side
from normgauge.comparison.qk import score_kernel

NULL = "energy-matched random difference"
MEMBERS = 8  # rows of a table below which it is not tested


@dataclass(frozen=True, eq=False)
class Components:
    """Components of one kind: places, energies of their changes, expected energies of a random change of variance one, of rounding, laws."""

    statistic: str
    places: list[dict[str, Any]]
    energies: np.ndarray
    susceptibilities: np.ndarray
    floors: np.ndarray
    laws: list[EnergyLaw]

    def ratios(self) -> np.ndarray:
        """Energy observed over energy expected, with the variance that matches the total above the rounding floor."""
        excess = max(float(self.energies.sum() - self.floors.sum()), 0.0)
        total = float(self.susceptibilities.sum())
        expected = self.floors + (excess / total if total else 0.0) * self.susceptibilities
        return np.divide(self.energies, expected, out=np.zeros_like(self.energies), where=expected > 0)


def location_tests(stored: Pair, aligned: Aligned, count: int, generator: np.random.Generator) -> Iterator[Test]:
    """One confirmatory test per head's O V and Q^T K kernel, per feed-forward layer and per table of the stream.

    A layer's test is that of its most changed unit, a table's that of its most changed row, against the largest of as many draws.
    `stored`: the pair as it is stored, for the rounding floors; `aligned`: the same pair in one gauge.
    """
    for components in head_components(stored, aligned):
        for place, ratio, law in zip(components.places, components.ratios(), components.laws, strict=True):
            yield Test(components.statistic, NULL, float(ratio), law.draws(count, generator), True, place)
    units = unit_components(stored, aligned)
    ratios, start = units.ratios() if units else np.empty(0), 0
    for layer, size in _layer_sizes(units):
        part = ratios[start : start + size]
        place = {**layer, "unit": int(part.argmax())}
        yield Test("mlp_unit_energy", NULL, float(part.max()), units.laws[start].largest(size, count, generator), True, place)  # type: ignore[union-attr]
        start += size
    for name in table_names(stored):
        components = table_components(stored, aligned.pair, name)
        ratios = components.ratios()
        place = {"part": "embedding", "token": int(ratios.argmax()), "label": name}
        yield Test("table_row_energy", NULL, float(ratios.max()), components.laws[0].largest(len(ratios), count, generator), True, place)


def test_count(pair: Pair) -> int:
    """How many tests `location_tests` makes."""
    heads = sum(pair.anatomy.space(layer.maps["query"].writes).heads for layer in attention_layers(pair.anatomy))
    return 2 * heads + len(feed_forward_layers(pair.anatomy)) + len(table_names(pair))


def table_names(pair: Pair) -> list[str]:
    """The tables of the primary stream with enough rows to tell one from the others."""
    names = anchor_tables(pair.anatomy, pair.anatomy.primary_stack.space)
    return [name for name in names if pair.anatomy.tensor(name).shape[0] >= MEMBERS]


def _layer_sizes(units: Components | None) -> list[tuple[dict[str, Any], int]]:
    counts: dict[int, int] = {}
    for place in units.places if units else []:
        counts[place["block"]] = counts.get(place["block"], 0) + 1
    return [({"block": block, "part": "mlp"}, size) for block, size in counts.items()]


# --- heads


def head_components(stored: Pair, aligned: Aligned) -> list[Components]:
    """The O V and the Q^T K kernels of all heads."""
    found = []
    for statistic, kernel, floors in (("ov_energy", head_kernel, _ov_floors), ("qk_energy", score_kernel, _qk_floors)):
        places, energies, susceptibilities, floor, laws = [], [], [], [], []
        for layer in attention_layers(stored.anatomy):
            first, second = (attention_factors(side, layer, Mode.RAW) for side in (aligned.pair.a, aligned.pair.b))
            order = aligned.orders[f"{layer.prefix}attention"]
            floor.append(floors(stored.a, layer) + floors(stored.b, layer)[order])
            for head in range(first.heads):
                pair = kernel(first, head), kernel(second, head)
                values = [each.singular_values() for each in pair]
                places.append({"block": layer.block, "part": "attention", "head": head})
                energies.append(change(*pair).energy())
                susceptibilities.append(sum(float(each.sum()) for each in values))
                laws.append(kernel_law(values[0] + values[1], len(pair[0].left)))
        if len(places) > 1:
            found.append(Components(statistic, places, *map(np.array, (energies, susceptibilities)), np.concatenate(floor), laws))
    return found


def kernel_law(values: np.ndarray, size: int) -> EnergyLaw:
    """The law of |dL R + L dR|^2 for a product with these singular values, in its balanced basis, dL and dR with `size` independent normal
    entries per column and row: variance over squared mean is sum s^2 / (n (sum s)^2) + 1 / n^2."""
    total = float(values.sum())
    spread = float((values**2).sum()) / total**2 if total else 1.0
    return EnergyLaw(1 / (spread / size + 1 / size**2))


def _by_head(side: Side, layer: Layer, part: str, floor: bool) -> np.ndarray:
    """(heads, d_h, n) of queries, keys, values or, transposed, of the output map."""
    item = layer.maps[part]
    rows = matrix(side, item, floor)
    if part == "attention_output":
        rows = rows.T
        return rows.reshape(side.anatomy.space(layer.maps["query"].writes).heads, -1, rows.shape[1])
    return rows.reshape(side.anatomy.space(item.writes).heads, -1, rows.shape[1])


def _ov_floors(side: Side, layer: Layer) -> np.ndarray:
    return _product_floors(side, layer, "attention_output", "value")


def _qk_floors(side: Side, layer: Layer) -> np.ndarray:
    return _product_floors(side, layer, "query", "key")


def _product_floors(side: Side, layer: Layer, many: str, shared: str) -> np.ndarray:
    """(H,): expected energy that rounding the two factors as stored adds to each head's product; the second is shared in its group."""
    first, second = ((_by_head(side, layer, part, False) ** 2).sum(2) for part in (many, shared))
    noise = [_by_head(side, layer, part, True).sum(2) for part in (many, shared)]
    groups = np.arange(len(first)) * len(second) // len(first)
    return (noise[0] * second[groups] + first * noise[1][groups]).sum(1)


# --- feed-forward units


def unit_components(stored: Pair, aligned: Aligned) -> Components | None:
    """The units of all feed-forward layers; None without any."""
    places: list[dict[str, Any]] = []
    energies, susceptibilities, floors = [], [], []
    laws: list[EnergyLaw] = []
    for layer in feed_forward_layers(stored.anatomy):
        sides = [_unit_factors(side, layer) for side in (aligned.pair.a, aligned.pair.b)]
        units = Units(*sides)
        parts = [unit_parts(factors) for factors in sides]
        weights = (parts[0] + parts[1]) / np.maximum((parts[0] + parts[1]).sum(0), 1e-300)
        size = sides[0][0].shape[1]
        concentration = float((weights**2).sum(0).mean())
        laws += [EnergyLaw(1 / (2 * concentration / size + 2 * (1 - concentration) / size**2))] * len(sides[0][0])
        places += [{"block": layer.block, "part": "mlp", "unit": unit} for unit in range(len(sides[0][0]))]
        energies.append(units.energies(change_terms(units.count)))
        susceptibilities.append(parts[0].sum(0) + parts[1].sum(0))
        order = aligned.orders[f"{layer.prefix}ffn"]
        floors.append(_unit_floors(stored.a, layer) + _unit_floors(stored.b, layer)[order])
    if not places:
        return None
    return Components("mlp_unit_energy", places, *map(np.concatenate, (energies, susceptibilities, floors)), laws)  # type: ignore[arg-type]


def _unit_factors(side: Side, layer: Layer) -> tuple[np.ndarray, ...]:
    factors = feed_forward_factors(side, layer, Mode.RAW)
    return (factors.down, *(read[:, :-1] for read in factors.reads))


def unit_parts(factors: tuple[np.ndarray, ...]) -> np.ndarray:
    """(factors, f): expected energy of the change of d (x) sym(reads) when one factor alone moves by a random vector of unit length, with up
    and down equally long, as a scale of the unit can make them."""
    down, reads = factors[0], factors[1:]
    length = np.linalg.norm(down, axis=1) * np.linalg.norm(reads[-1], axis=1)
    if len(reads) == 1:
        return np.stack([length, length])
    gate = (reads[0] ** 2).sum(1)
    up = (reads[1] ** 2).sum(1)
    overlap = np.divide((reads[0] * reads[1]).sum(1) ** 2, gate * up, out=np.zeros_like(gate), where=gate * up > 0)
    return np.stack([length * gate * (1 + overlap), length**2, length * gate]) / 2


def _unit_floors(side: Side, layer: Layer) -> np.ndarray:
    """(f,): expected energy that rounding the factors as stored adds to each unit."""
    names = [part for part in ("gate", "up") if part in layer.maps]
    reads = [matrix(side, layer.maps[name]) for name in names]
    noise = [matrix(side, layer.maps[name], True) for name in names]
    down, down_noise = matrix(side, layer.maps["down"]).T, matrix(side, layer.maps["down"], True).T
    squares = (down**2).sum(1)
    if len(reads) == 1:
        return down_noise.sum(1) * (reads[0] ** 2).sum(1) + squares * noise[0].sum(1)
    form = ((reads[0] ** 2).sum(1) * (reads[1] ** 2).sum(1) + (reads[0] * reads[1]).sum(1) ** 2) / 2
    crossed = [noise[one].sum(1) * (reads[other] ** 2).sum(1) + (noise[one] * reads[other] ** 2).sum(1) for one, other in ((0, 1), (1, 0))]
    return down_noise.sum(1) * form + squares * (crossed[0] + crossed[1]) / 2


# --- rows of tables


def table_components(stored: Pair, aligned: Pair, name: str) -> Components:
    """The rows of one table, such as the tokens of the embedding."""
    energies = [((after - before) ** 2).sum(1) for before, after in zip(aligned.a.rows(name), aligned.b.rows(name), strict=True)]
    floors = [sum(part.sum(1) for part in parts) for parts in zip(stored.a.floor_rows(name), stored.b.floor_rows(name), strict=True)]
    total = np.concatenate(energies)
    law = EnergyLaw(stored.anatomy.tensor(name).shape[1] / 2)
    return Components("table_row_energy", [], total, np.ones_like(total), np.concatenate(floors), [law])
