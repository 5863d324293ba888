"""What signed permutations are on their own: greedy assignment, the discrete part of a rotation
between runs, and the rules by which tensors and artifacts move.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from normgauge.checkpoints.configuration import parse_config
from normgauge.checkpoints.readers import read_json
from normgauge.gauge.activations import Activations
from normgauge.gauge.groups import Monomial
from normgauge.render import style
from normgauge.render.discrete_laws.drawings import DRAWINGS
from normgauge.schemas.discrete_laws import CORRELATION, COVARIANCE, tables
from normgauge.signed_permutation import rules
from normgauge.signed_permutation.greedy import greedy_rows, normal_samples
from normgauge.signed_permutation.laws_study import state_laws
from normgauge.signed_permutation.natural_scaffold import drawn_row, scaffold_rows
from unit.test_render import assert_legible

SHAPES = [
    Path(__file__).parents[2] / f"config/shapes/small/{name}.json"
    for name in ("tiny-llama", "tiny-gpt2")
]
FIGURES = {
    "transport_rules": ("artifact_rules", "weight_rules"),
    "minimal_example": ("minimal_example",),
    "greedy_assignment": ("greedy_assignment",),
    "scaffold": ("scaffold",),
}


def drawn(kind, rows):
    """Every figure of a table of these rows is legible."""
    with style.look():
        for figure in FIGURES[kind]:
            assert_legible(DRAWINGS[figure](rows))


# ---------------------------------------------------------------- greedy assignment


def test_a_copy_is_found_by_both_and_noise_costs_the_greedy_match_more():
    clean, noisy = (
        next(greedy_rows(normal_samples(60, 400, 1), "normal", noise, 1, [CORRELATION]))
        for noise in (0.0, 2.5)
    )
    for name in ("exact", "greedy"):
        assert clean[f"{name}_permutation"] == clean[f"{name}_sign"] == 1
    assert clean["greedy_loses"] == 0
    assert clean["method"] == "row argmax"
    assert 0.3 < noisy["greedy_permutation"] < noisy["exact_permutation"] < 1
    assert noisy["greedy_loses"] > 0
    drawn("greedy_assignment", [clean, noisy])


def test_the_covariance_of_a_copy_is_matched_exactly_whatever_the_lengths():
    """No assignment sums to more than the squared lengths, by Cauchy-Schwarz; a row's 200 best may
    all belong to longer coordinates.
    """
    lengths = np.random.default_rng(0).permutation(np.geomspace(1, 1e-3, 500))
    samples = normal_samples(40, 500, 2) * lengths
    (row,) = greedy_rows(samples, "wide", 0.0, 3, [COVARIANCE])
    assert row["exact_permutation"] == 1
    assert row["candidates"] < 1
    assert row["greedy_permutation"] < 1
    with pytest.raises(ValueError, match="expected"):
        next(greedy_rows(samples, "wide", 0.0, 1, ["distance"]))


# ---------------------------------------------------------------- the scaffold


def seen(rows):
    return {"site": Activations(torch.from_numpy(rows), tuple([20] * (len(rows) // 20)))}


def test_the_discrete_part_of_a_run_is_the_recorded_gauge():
    generator = np.random.default_rng(5)
    rows, truth = generator.standard_normal((400, 24)), Monomial.random(24, 6)
    skew = generator.standard_normal((24, 24))
    near, far = (expm(reach * (skew - skew.T) / 10) for reach in (0.3, 3.0))
    (close,) = scaffold_rows(seen(rows), seen(rows @ truth.matrix() @ near), truth)
    assert close["places"] == close["signed_places"] == close["matched"] == 1
    assert close["certified"]
    assert close["certain"] == close["certain_places"] == 1
    assert close["distance"] < 0.765
    assert close["error"] < 1e-20 < close["discrete_error"]
    (apart,) = scaffold_rows(seen(rows), seen(rows @ truth.matrix() @ far), truth)
    assert apart["error"] < 1e-20
    assert apart["signed_places"] < 0.5
    assert not apart["certified"]
    (unknown,) = scaffold_rows(seen(rows), seen(rows @ truth.matrix() @ near))
    assert unknown["places"] is unknown["certain_places"] is None
    control = drawn_row(24, 1)
    assert control["certain"] < 0.2
    named = {"first": "m@a", "second": "m@b"}
    drawn("scaffold", [named | close, named | apart, control])


# ---------------------------------------------------------------- rules


@pytest.fixture(scope="module")
def stated(tmp_path_factory):
    place = tmp_path_factory.mktemp("laws")
    names = ("minimal_example", "transport_rules")
    output = {
        name: {suffix: place / f"{name}.{suffix}" for suffix in ("parquet", "csv")}
        for name in names
    }
    state_laws(SHAPES, output)
    return {name: tables.read(output[name]["parquet"], name) for name in names}


def test_rules_are_those_of_the_paper(stated):
    found = {
        (row["owner"], row["tensor"].removeprefix("model.layers.0.")): (
            row["rule"],
            row["without_signs"],
        )
        for row in stated["transport_rules"]
    }
    weights = {
        "model.embed_tokens.weight": ("X G", 2),
        "input_layernorm.weight": ("X |G|", 0),
        "self_attn.q_proj.weight": ("X G", 2),
        "self_attn.o_proj.weight": ("G^T X", 2),
        "mlp.gate_proj.weight": ("|F|^T X G", 2),
        "mlp.up_proj.weight": ("F^T X G", 2),
        "mlp.down_proj.weight": ("G^T X F", 2),
        "lm_head.weight": ("X G", 2),
    }
    assert {name: found["LlamaForCausalLM", name] for name in weights} == weights
    assert found["GPT2LMHeadModel", "transformer.h.0.ln_1.bias"] == ("X G", 4)
    assert found["GPT2LMHeadModel", "transformer.h.0.ln_1.weight"] == ("X |G|", 0)
    assert found["steering vector", "direction"] == ("X G", 2)
    assert found["sparse autoencoder", "W_enc"] == ("G^T X", 2)
    assert found["sparse autoencoder", "b_enc"] == ("stays", 0)
    adamw = {
        tensor.partition(" ")[0]: rule
        for (owner, tensor), rule in found.items()
        if owner == "AdamW"
    }
    assert adamw == {"exp_avg": ("G^T X", 2), "exp_avg_sq": ("|G|^T X", 0)}


def test_what_follows_no_rule_is_said(monkeypatch):
    monkeypatch.setattr(
        rules, "moved_vectors", lambda element, _, value, __: element.inverse().apply(value)
    )
    with pytest.raises(ValueError, match="by no rule"):
        list(rules.rule_rows(parse_config(read_json(SHAPES[0]))))


@pytest.mark.parametrize("kind", ["minimal_example", "transport_rules"])
def test_laws_are_drawn(kind, stated):
    drawn(kind, stated[kind])
