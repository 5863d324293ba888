"""One pair from end to end: opened, aligned, measured, tested, decided; four tables and one
decision.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normgauge.calibration.tokenisation import find_tokenizer, load_tokenizer
from normgauge.checkpoint_comparison.alignment import Aligned, align
from normgauge.checkpoint_comparison.components import Components
from normgauge.checkpoint_comparison.decision import decide, write_decision
from normgauge.checkpoint_comparison.equality import differing
from normgauge.checkpoint_comparison.factors import (
    AttentionFactors,
    FeedForwardFactors,
    Layer,
    Mode,
    attention_factors,
    blocks,
    feed_forward_factors,
    rotary_frequencies,
)
from normgauge.checkpoint_comparison.inventory import inventory_rows
from normgauge.checkpoint_comparison.kernels import change
from normgauge.checkpoint_comparison.location import located, location_tests, test_count
from normgauge.checkpoint_comparison.mlp import factorial_rows, mlp_rows
from normgauge.checkpoint_comparison.motifs import (
    Writer,
    motif_rows,
    moved_by_all,
    writers,
)
from normgauge.checkpoint_comparison.nulls import Test, draws_needed, test_rows
from normgauge.checkpoint_comparison.ov import ov_rows, token_kernel
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.checkpoint_comparison.pairing import open_pair
from normgauge.checkpoint_comparison.probe_tests import copy_tests, exploratory_tests
from normgauge.checkpoint_comparison.probes import (
    Frame,
    ProbeSet,
    find_probes,
    frames,
    read_probes,
    token_table,
)
from normgauge.checkpoint_comparison.qk import (
    all_composition_rows,
    composition_rows,
    qk_rows,
)
from normgauge.checkpoint_comparison.recency import recency_rows
from normgauge.checkpoint_comparison.spectra import (
    norm_rows,
    pooled_rows,
    spectra_rows,
    token_rows,
)
from normgauge.progress import Progress
from normgauge.schemas.checkpoint_comparison import tables

Rows = list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result: rows of the four schemas of `normgauge.schemas.checkpoint_comparison`, and the
    decision.
    """

    inventory: Rows
    alignment: Rows
    kernels: Rows
    nulls: Rows
    decision: dict[str, Any]


def compare(
    pair: Pair,
    probes: Sequence[ProbeSet],
    draws: int,
    seed: int,
    declared: str | None = None,
    dropped: Mapping[str, Sequence[str]] | None = None,
    names: Mapping[int, str] | None = None,
) -> Comparison:
    """Compare a pair.

    `draws`: at least so many per test. `declared`: the probe set of the confirmatory tests; where
        it is not among `probes` the decision
    abstains. `dropped`: tokens that are not in the vocabulary, by set. `names`: tokens by id, for
        labels.
    """
    aligned = align(pair)
    kernels = kernel_rows(aligned.pair, probes, names or {})
    components = located(aligned)
    generator = np.random.default_rng(seed)
    tests = all_tests(aligned, components, probes, declared, draws, generator)
    nulls = [{**row, "token_text": (names or {}).get(row["token"])} for row in test_rows(tests)]
    apart = [part.row() for part in differing(aligned, components)]
    decision = decide(nulls, apart, declared, dropped or {})
    return Comparison(inventory_rows(pair, aligned.pair), aligned.rows, kernels, nulls, decision)


def compare_folders(
    folders: tuple[str | os.PathLike[str], str | os.PathLike[str]],
    outputs: Mapping[str, str | os.PathLike[str]],
    overrides: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None],
    probes: str | os.PathLike[str],
    declared: str | None,
    draws: int,
    seed: int,
    metadata: Mapping[str, str],
) -> None:
    """Compare two checkpoint folders and write the tables and the decision, by name in `outputs`.

    `probes` is a file of probe sets, `declared` the one of the confirmatory tests. Raises
    InputError as `open_pair` does.
    """
    sets = read_probes(probes)
    pair = open_pair(folders, overrides)
    lender = next((folder for folder in folders if find_tokenizer(folder) is not None), folders[0])
    found, dropped = find_probes(sets, lender, pair, declared)
    names = {}
    if find_tokenizer(lender) is not None:
        vocabulary = load_tokenizer(lender).tokenizer.get_vocab()
        names = {number: token for token, number in vocabulary.items()}
    result = compare(pair, found, draws, seed, declared, dropped, names)
    for kind in ("inventory", "alignment", "kernels", "nulls"):
        tables.write(
            outputs[kind],
            f"checkpoint_comparison_{kind}",
            getattr(result, kind),
            {**metadata, "noted": "; ".join(pair.noted)},
        )
    write_decision(outputs["decision"], result.decision)


@dataclass(frozen=True, eq=False)
class _Block:
    """The layers of one block in one mode, on both sides."""

    number: int
    attention: tuple[AttentionFactors, AttentionFactors] | None
    feed_forward: tuple[FeedForwardFactors, FeedForwardFactors] | None
    frequencies: np.ndarray | None


def _read(
    pair: Pair, number: int, attention: Layer | None, feed_forward: Layer | None, mode: Mode
) -> _Block:
    sides = (pair.a, pair.b)
    return _Block(
        number,
        None
        if attention is None
        else tuple(attention_factors(side, attention, mode) for side in sides),  # type: ignore[arg-type]
        None
        if feed_forward is None
        else tuple(feed_forward_factors(side, feed_forward, mode) for side in sides),  # type: ignore[arg-type]
        rotary_frequencies(pair.a, number),
    )


def kernel_rows(pair: Pair, probes: Sequence[ProbeSet], names: Mapping[int, str]) -> Rows:
    """Rows of schema `checkpoint_comparison_kernels` of the pair as it is, block by block."""
    seen = {mode: frames(pair, probes, mode) for mode in Mode}
    rows: Rows = []
    layers = list(blocks(pair.anatomy))
    progress = Progress(len(layers) * len(Mode), "kernels")
    for mode in Mode:
        spectra = _Spectra(mode)
        strongest: tuple[float, _Block, int] | None = None
        earlier: list[Writer] = []
        for number, attention, feed_forward in layers:
            block = _read(pair, number, attention, feed_forward, mode)
            if block.attention:
                assert attention is not None
                moved = moved_by_all(earlier, seen[mode])
                rows += all_composition_rows(number, block.attention, moved, seen[mode], mode)
                if mode == Mode.RAW:
                    rows += factorial_rows((pair.a, pair.b), attention, seen)
                rows += ov_rows(number, *block.attention, seen[mode], mode)
                rows += qk_rows(number, *block.attention, seen[mode], block.frequencies, mode)
                if block.frequencies is not None:
                    rows += recency_rows(
                        number, *block.attention, seen[mode], block.frequencies, mode
                    )
                if strongest:
                    source = strongest[1].attention
                    assert source is not None
                    rows += composition_rows(
                        block.attention,
                        source,
                        (number, strongest[1].number, strongest[2]),
                        seen[mode],
                        mode,
                    )
                if probes:
                    strongest = _strongest(strongest, block, seen[mode])
                spectra.add(number, "attention", block.attention, seen[mode], rows)
            if block.feed_forward:
                assert feed_forward is not None
                rows += mlp_rows(number, *block.feed_forward, seen[mode], mode)
                rows += motif_rows(number, block.feed_forward, earlier, seen[mode], mode)
                spectra.add(number, "mlp", block.feed_forward, seen[mode], rows)
                if mode == Mode.RAW:
                    rows += factorial_rows((pair.a, pair.b), feed_forward, seen)
            if block.attention:
                earlier += writers(number, block.attention, seen[mode])
            progress.step()
        rows += spectra.pooled(pair, names)
    rows += norm_rows((pair.a, pair.b), Mode.RAW)
    return rows


def _strongest(
    found: tuple[float, _Block, int] | None, block: _Block, seen: Sequence[tuple[Frame, Frame]]
) -> tuple[float, _Block, int]:
    """The head so far whose kernel between the first probe set's tokens changed most."""
    assert block.attention is not None
    heads = range(block.attention[0].heads)
    energies = [
        change(
            *(
                token_kernel(side, head, frame)
                for side, frame in zip(block.attention, seen[0], strict=True)
            )
        ).energy()
        for head in heads
    ]
    head = int(np.argmax(energies))
    return found if found and found[0] >= energies[head] else (energies[head], block, head)


class _AttentionLayers:
    """(block, folded factors of both sides, rotary frequencies) of every attention layer, read anew
    whenever they are gone through: one block is in memory at a time.
    """

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def __iter__(self) -> Iterator[Any]:
        for number, attention, _ in blocks(self._pair.anatomy):
            if attention is not None:
                block = _read(self._pair, number, attention, None, Mode.FOLDED)
                yield number, block.attention, block.frequencies

    @property
    def heads(self) -> int:
        """Query heads of all layers."""
        anatomy = self._pair.anatomy
        return sum(
            anatomy.space(attention.maps["query"].writes).heads
            for _, attention, _ in blocks(anatomy)
            if attention is not None
        )


class _Spectra:
    """Collects the leading axes of all layers in one mode, and the sums of their covariances."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.covariances: dict[str, np.ndarray] = {}
        self.places: list[tuple[int, str]] = []
        self.axes: list[np.ndarray] = []

    def add(
        self, block: int, part: str, sides: Any, seen: Sequence[tuple[Frame, Frame]], rows: Rows
    ) -> None:
        found, covariance, axis = spectra_rows(block, part, sides[0], sides[1], seen, self.mode)
        rows += found
        self.covariances[part] = self.covariances.get(part, 0.0) + covariance
        self.places.append((block, part))
        self.axes.append(axis if covariance.any() else np.zeros_like(axis))

    def pooled(self, pair: Pair, names: Mapping[int, str]) -> Rows:
        rows = list(pooled_rows(self.covariances, self.mode))
        table = token_table(pair.anatomy)
        if table is not None and self.axes:
            axes = np.stack(self.axes, axis=1)
            parts = zip(pair.a.rows(table), pair.b.rows(table), strict=True)
            cosines = [
                mean @ axes / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-300)
                for mean in ((a + b) / 2 for a, b in parts)
            ]
            rows += token_rows(self.places, np.concatenate(cosines), names, self.mode)
        return rows


def all_tests(
    aligned: Aligned,
    components: Sequence[Components],
    probes: Sequence[ProbeSet],
    declared: str | None,
    draws: int,
    generator: np.random.Generator,
) -> list[Test]:
    """Every test of the pair: the confirmatory family first. `components`: see `located`."""
    pair = aligned.pair
    seen = frames(pair, probes, Mode.FOLDED)
    layers = _AttentionLayers(pair)
    heads = layers.heads
    chosen = [each for each in seen if each[0].probe.name == declared]
    count = draws_needed(test_count(pair) + (heads + 1 if chosen else 0), draws)
    tests = list(location_tests(pair, components, count, generator))
    for each in chosen:
        tests += copy_tests(layers, each, count, generator)
    tests += exploratory_tests(pair, layers, seen, draws, generator)
    return tests
