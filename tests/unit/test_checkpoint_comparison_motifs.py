"""Single units between tokens: profiles by another route, planted motifs, gates and readers found
first, and who asks for a contrast.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from normgauge.checkpoint_comparison.factors import (
    Layer,
    Mode,
    attention_factors,
    attention_layers,
    feed_forward_factors,
    feed_forward_layers,
)
from normgauge.checkpoint_comparison.motifs import motif_rows, profile, unit_length, writers
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.checkpoint_comparison.pairing import make_pair
from normgauge.checkpoint_comparison.probes import (
    distinct_contrasts,
    frames,
    questions,
    set_contrasts,
)
from normgauge.checkpoint_comparison.study import kernel_rows
from normgauge.checkpoints.opening import Checkpoint
from unit.comparison_pairs import FAMILIES, PROBES, changed, checkpoint, nearby, pair_of, rows_of

UNIT, TOKEN, BLOCK = 3, 2, 2


def with_unit(source: Checkpoint, layer: Layer, rows: dict[str, np.ndarray]) -> Checkpoint:
    """The checkpoint with other rows for UNIT of a layer: what it reads by `gate` and `up`, what it
    writes by `down`.
    """
    tensors = {}
    for part, values in rows.items():
        item = layer.maps[part]
        weight = source.tensors[item.weight].clone()
        matrix = weight if item.input_axis == 1 else weight.T
        (matrix.T if part == "down" else matrix)[UNIT] = torch.from_numpy(values)
        tensors[item.weight] = weight
    return changed(source, tensors)


def close_pair(family: str) -> tuple[Checkpoint, Checkpoint, Pair]:
    first = checkpoint(family, 1)
    second = nearby(first, 2, share=0.02)
    return first, second, make_pair(first, second)


def rows_with(rows, statistic: str, **place):
    return [
        row
        for row in rows
        if row["statistic"] == statistic and all(row[key] == value for key, value in place.items())
    ]


def test_a_profile_by_correlation_and_by_projection():
    generator = np.random.default_rng(0)
    rows, tokens = generator.standard_normal((7, 12)), generator.standard_normal((5, 12))
    tokens -= tokens.mean(0)
    found = profile(rows / np.linalg.norm(rows, axis=1, keepdims=True), tokens)
    for unit, products in enumerate(rows @ tokens.T):
        # both sides of a correlation are centred, as products with centred tokens are already
        assert found.templates[unit] == pytest.approx(
            [np.corrcoef(products, one_hot)[0, 1] for one_hot in np.eye(5)]
        )
        fitted = tokens.T @ np.linalg.lstsq(tokens.T, rows[unit], rcond=None)[0]
        assert found.share[unit] == pytest.approx(fitted @ fitted / (rows[unit] @ rows[unit]))
        assert found.cosines[unit] == pytest.approx(
            products / np.linalg.norm(rows[unit]) / np.linalg.norm(tokens, axis=1)
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_planted_motif_is_found_first_and_its_turned_write_is_seen(family):
    """Both sides have the motif; A writes back the token that it reads, B the opposite."""
    first, second, pair = close_pair(family)
    layer = feed_forward_layers(pair.anatomy)[BLOCK - 1]
    template = np.eye(5)[TOKEN] - 1 / 5
    sides = []
    for source, seen, sign in zip(
        (first, second), frames(pair, PROBES, Mode.RAW)[0], (1, -1), strict=True
    ):
        reads, writes = (
            np.linalg.pinv(seen.reads[:, :-1]) @ template,
            np.linalg.pinv(seen.writes) @ template,
        )
        gated = {"gate": reads, "up": -2 * reads, "down": -sign * writes}
        sides.append(
            with_unit(
                source,
                layer,
                gated if "gate" in layer.maps else {"up": reads, "down": sign * writes},
            )
        )
    rows = kernel_rows(make_pair(*sides), PROBES, {})
    place = {"mode": "raw", "block": BLOCK, "probe": "five"}
    best = rows_with(rows, "mlp_motif_unit", **place)[0]
    assert (best["unit"], best["label"]) == (UNIT, str(TOKEN))
    assert (best["a"], best["b"]) == pytest.approx((1, 1))
    write = rows_with(rows, "mlp_motif_write", **place, unit=UNIT)[0]
    assert write["a"] > 0.1
    assert write["b"] == pytest.approx(-write["a"], rel=0.2)
    before = rows_with(kernel_rows(pair, PROBES, {}), "mlp_motifs", **place, label="0.9")[0]
    after = rows_with(rows, "mlp_motifs", **place, label="0.9")[0]
    assert (after["a"] - before["a"], after["b"] - before["b"]) == (1, 1)


def test_what_hardly_reads_the_tokens_or_is_closed_by_its_token_is_no_motif():
    """READ_SHARE is 0.08: of a unit whose reads have less to do with the tokens the cosines do not
    matter.
    """
    pair = pair_of("gpt2")
    factors = feed_forward_factors(pair.a, feed_forward_layers(pair.anatomy)[0], Mode.RAW)
    seen = frames(pair, PROBES, Mode.RAW)
    tokens = seen[0][0].reads[:, :-1]
    template = np.linalg.pinv(tokens) @ (np.eye(5)[TOKEN] - 1 / 5)
    stray = np.random.default_rng(0).standard_normal(len(template))
    stray -= np.linalg.pinv(tokens) @ (tokens @ stray)

    def score(share: float, sign: int = 1) -> float:
        row = np.sqrt(share) * template / np.linalg.norm(template) + np.sqrt(
            1 - share
        ) * stray / np.linalg.norm(stray)
        planted = dataclasses.replace(
            factors, reads=(np.append(sign * row, 0.0)[None],), down=template[None]
        )
        found = rows_with(
            motif_rows(1, (planted, planted), (), seen, Mode.RAW), "mlp_motif_unit", probe="five"
        )
        return found[0]["a"] if found else 0.0

    assert [score(share) for share in (0.07, 0.09, 0.9)] == pytest.approx([0, 1, 1])
    # closed by its token it is open for the four others, at a cosine of 1/4
    assert score(0.9, -1) == pytest.approx(1 / 4)


@pytest.mark.parametrize("family", ["gemma3", "llama"])
def test_gates_of_opposing_units_that_are_the_contrast_have_cosine_one(family):
    pair = pair_of(family)
    layer = feed_forward_layers(pair.anatomy)[0]
    first, second = (feed_forward_factors(side, layer, Mode.FOLDED) for side in (pair.a, pair.b))
    seen = frames(pair, PROBES, Mode.FOLDED)
    copies = seen[0][1].writes.T @ seen[0][1].reads
    paths = np.array(
        [write @ copies @ read for write, read in zip(second.down, second.reads[1], strict=True)]
    )
    assert 0 < (paths < 0).sum() < len(paths)
    contrast = set_contrasts(seen)["five"][1]
    gates = np.where((paths < 0)[:, None], 3 * contrast, second.reads[0])
    other = dataclasses.replace(second, reads=(gates, second.reads[1]))
    before, after = (
        {
            row["label"]: row
            for row in rows_with(
                motif_rows(1, (first, each), (), seen, Mode.FOLDED),
                "mlp_gate_contrast",
                probe="five",
            )
        }
        for each in (second, other)
    )
    assert set(before) == {"preserving, five", "opposing, five"}
    assert after["opposing, five"]["b"] == pytest.approx(1)
    assert after["opposing, five"]["a"] == before["opposing, five"]["a"]
    weights = np.maximum(paths, 0)
    cosines = (
        second.reads[0][:, :-1]
        @ contrast[:-1]
        / np.linalg.norm(second.reads[0][:, :-1], axis=1)
        / np.linalg.norm(contrast)
    )
    for found in (before, after):
        assert found["preserving, five"]["b"] == pytest.approx(
            sum(cosines * weights) / sum(weights)
        )


@pytest.mark.parametrize("part", ["gate", "up"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_planted_reader_of_an_earlier_head_is_found_first(family, part):
    """A unit of the second block comes to read what head 1 of the first one makes of the
    contrast.
    """
    first, second, pair = close_pair(family)
    layer = feed_forward_layers(pair.anatomy)[BLOCK - 1]
    if part not in layer.maps:
        return
    attention = attention_factors(pair.b, attention_layers(pair.anatomy)[0], Mode.RAW)
    contrast = set_contrasts(frames(pair, PROBES, Mode.RAW))["five"][1]
    moved = attention.output[1] @ (attention.value[attention.group(1)] @ contrast)
    rows = kernel_rows(make_pair(first, with_unit(second, layer, {part: moved})), PROBES, {})
    found = [
        row
        for row in rows_with(rows, "mlp_reader_unit", mode="raw", block=BLOCK)
        if row["label"].startswith(part)
    ]
    assert (found[0]["unit"], found[0]["label"], found[0]["probe"]) == (
        UNIT,
        f"{part}, block 1 head 1",
        "five",
    )
    assert found[0]["change"] > 3 * max(abs(row["change"]) for row in found[1:])


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
def test_readers_by_the_dense_route(family):
    pair = pair_of(family)
    seen = frames(pair, PROBES, Mode.FOLDED)
    sides = tuple(
        attention_factors(side, attention_layers(pair.anatomy)[0], Mode.FOLDED)
        for side in (pair.a, pair.b)
    )
    units = tuple(
        feed_forward_factors(side, feed_forward_layers(pair.anatomy)[1], Mode.FOLDED)
        for side in (pair.a, pair.b)
    )
    rows = list(motif_rows(2, units, writers(1, sides, seen), seen, Mode.FOLDED))
    contrast = set_contrasts(seen)["five"][0]
    moved = [
        sides[0].output[head] @ sides[0].value[sides[0].group(head)] @ contrast
        for head in range(sides[0].heads)
    ]
    total = sum(each @ each for each in moved)
    reads = units[0].reads[-1][:, :-1]
    shares = np.array(
        [[(row @ each) ** 2 / (row @ row) / total for each in moved] for row in reads]
    )
    for row in rows_with(rows, "mlp_reader_unit"):
        if row["label"].startswith("up"):
            assert row["a"] == pytest.approx(
                shares[row["unit"], int(row["label"].rpartition(" ")[2])]
            )
    weights = profile(unit_length(units[0]).down, seen[1][0].writes).share
    (whole,) = rows_with(rows, "mlp_reader", probe="other", label="up, five")
    assert whole["a"] == pytest.approx(float(shares.sum(1) @ weights / weights.sum()))
    assert shares.sum() < len(shares)


def test_a_block_reads_the_heads_of_all_blocks_before_it_and_of_no_other():
    first = checkpoint("llama", 1, num_hidden_layers=3)
    rows = kernel_rows(make_pair(first, nearby(first, 2)), PROBES, {})
    assert {row["block"] for row in rows_with(rows, "mlp_motif_unit")} == {1, 2, 3}
    read = {
        (row["block"], int(row["label"].split()[2])) for row in rows_with(rows, "mlp_reader_unit")
    }
    assert read == {(2, 1), (3, 1), (3, 2)}


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_contrast_is_asked_for_by_the_set_that_is_named(family):
    """Both routes through an earlier head and the direct one, by the dense route: `other` is asked
    for by `five`, `five` by itself.
    """
    pair = pair_of(family)
    seen = frames(pair, PROBES, Mode.FOLDED)
    layers = [
        attention_factors(pair.a, layer, Mode.FOLDED) for layer in attention_layers(pair.anatomy)
    ]
    query, contrast = seen[0][0].prototype, set_contrasts(seen)["other"][0]
    place = {"mode": "folded", "block": 2, "head": 1, "probe": "other"}
    rows = [
        row for row in rows_of(family) if all(row[key] == value for key, value in place.items())
    ]
    scores = layers[1].query[1].T @ layers[1].key[layers[1].group(1)]
    (direct,) = rows_with(rows, "qk_contrast", label="0")
    assert direct["a"] == pytest.approx(query @ scores @ contrast)
    (controlled,) = rows_with(rows, "qk_contrast_controlled", label="0")
    assert controlled["a"] == pytest.approx(-contrast @ scores @ contrast)
    (as_key,), (as_query,) = (
        rows_with(rows, name) for name in ("qk_composition", "qk_composition_query")
    )
    source = int(as_key["label"].rpartition(" ")[2])
    moved = np.append(
        layers[0].output[source] @ layers[0].value[layers[0].group(source)] @ contrast, 0.0
    )
    assert as_key["a"] == pytest.approx(query @ scores @ moved)
    assert as_query["a"] == pytest.approx(moved @ scores @ query)


def test_nobody_asks_in_place_of_a_set_that_is_not_in_the_vocabulary():
    pair = pair_of("llama")
    missing = (PROBES[0], dataclasses.replace(PROBES[1], query="first-person"))
    assert [question.probe for question in questions(frames(pair, missing, Mode.RAW))] == ["five"]


def test_of_two_contrasts_that_are_opposite_one_is_kept():
    seen = frames(pair_of("llama"), PROBES, Mode.RAW)
    contrasts = set_contrasts(seen)
    assert np.array_equal(contrasts["five"], -contrasts["other"])
    assert list(distinct_contrasts(seen)) == ["five"]
