"""What is learned on a model is carried by the gauge that activations recover, and by no less."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.gauge.model_gauge import Gauge
from normgauge.schemas.learned_artifacts import tables
from normgauge.signed_permutation import learned_transport
from normgauge.signed_permutation.learned_artifacts import (
    FEED_FORWARD,
    STREAM,
    Texts,
    learned_artifacts,
)
from normgauge.signed_permutation.learned_audit import audit_rows, renumbered
from normgauge.signed_permutation.learned_transport import learned_rows
from normgauge.signed_permutation.learning import (
    Budget,
    adapted_modules,
    codes_of,
    decoded,
    learn_adapter,
    learn_dictionary,
)
from normgauge.signed_permutation.text_windows import Windows
from unit.gauge_models import config_of, random_checkpoint

BUDGET = Budget(4, 6, 80, 64, 2, 15, 4)
KINDS = ("steering vector", "dictionary", "adapter")
SEEDS = (42, 43)


def model_of(case, architecture, **changes):
    return random_checkpoint(config_of(case, architecture, **changes))


@pytest.fixture(scope="module")
def llama():
    return model_of("llama", "LlamaForCausalLM")


@pytest.fixture(scope="module")
def texts():
    """Prose of low tokens at random; code that runs through high ones in order."""
    generator = torch.Generator().manual_seed(1)
    prose = torch.randint(2, 9, (16, 16), generator=generator)
    start = torch.randint(0, 8, (16, 1), generator=generator)
    code = 9 + (start + torch.arange(16)) % 8
    return Texts(*(Windows(each[:12], each[12:]) for each in (prose, code)))


def probes(texts):
    windows = torch.cat([texts.prose.learned[:4], texts.code.learned[:4]])
    return [Batch({"input_ids": each[None]}, {}) for each in windows]


def rows_of(model, texts, kinds=KINDS):
    artifacts = learned_artifacts(*model, texts, kinds, BUDGET)
    return learned_rows(*model, artifacts, probes(texts), SEEDS)


def test_the_recovered_gauge_keeps_what_signs_take_away(llama, texts, tmp_path):
    rows = rows_of(llama, texts)
    tables.write(tmp_path / "learned.parquet", "learned_artifact", rows, {})
    assert {(row["artifact"], row["space"]) for row in rows} == {
        ("steering vector", STREAM),
        ("steering vector", FEED_FORWARD),
        ("dictionary", STREAM),
        ("LoRA adapter", STREAM),
        ("LoRA adapter", FEED_FORWARD),
    }
    for row in rows:
        assert row["signs_recovered"] == 1
        assert row["signed_value"] == pytest.approx(row["reference"], rel=1e-4)
        assert row["transported"] != "failed"
    for name in ("dictionary", "LoRA adapter"):
        called = [row for row in rows if (row["artifact"], row["space"]) == (name, STREAM)]
        assert all(row["transported"] == row["permutation_control"] == "passed" for row in called)
        assert all(row["permutation_kept"] < 0.9 < row["signed_kept"] for row in called)


def test_a_gauge_without_its_signs_fails(llama, texts, monkeypatch):
    """The planted fault: what is recovered has lost its signs."""
    right = learned_transport.recovered
    monkeypatch.setattr(
        learned_transport, "recovered", lambda *given: right(*given).without_signs()
    )
    rows = rows_of(llama, texts, ("dictionary", "adapter"))
    assert {row["transported"] for row in rows if row["space"] == STREAM} == {"failed"}


def test_what_has_no_effect_is_not_called_and_what_has_no_signs_has_no_control(texts):
    rows = rows_of(
        model_of("gpt2", "GPT2LMHeadModel", n_positions=16),
        texts,
        ("steering vector", "dictionary"),
    )
    units = [row for row in rows if row["space"] == FEED_FORWARD]
    assert {row["permutation_control"] for row in units} == {"no power"}  # GELU: no signs
    for row in rows:
        if not row["detectable"]:
            assert row["signed_kept"] is row["permutation_kept"] is row["raw_kept"] is None
            assert row["transported"] == "no power"
        assert row["detectable"] == (row["effect"] > 0.1)
    assert not all(row["detectable"] for row in rows)


def test_a_dictionary_learns_and_is_the_same_again():
    generator = torch.Generator().manual_seed(4)
    states = torch.randn(200, 3, generator=generator) @ torch.randn(3, 12, generator=generator) + 1
    arrays, again = (learn_dictionary(states, BUDGET) for _ in range(2))
    assert all(torch.equal(arrays[name], again[name]) for name in arrays)
    codes = codes_of(arrays, states, BUDGET.active)
    assert bool((codes >= 0).all())
    assert int((codes > 0).sum(1).max()) <= BUDGET.active
    left = (decoded(arrays, codes) - states).square().sum()
    assert left < 0.1 * (states - states.mean(0)).square().sum()


def test_an_adapter_leaves_its_model_as_it_was(llama, texts):
    checkpoint, anatomy = llama
    model = build_model(checkpoint, "float32")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modules = adapted_modules(model, anatomy)
    arrays, again = (learn_adapter(model, modules, texts.code.learned, BUDGET) for _ in range(2))
    assert all(torch.equal(arrays[name], again[name]) for name in arrays)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert len(arrays) == 2 * len(modules)


def test_names_move_and_come_back_by_the_recovered_gauge(llama, texts, tmp_path):
    (dictionary,) = learned_artifacts(*llama, texts, ("dictionary",), BUDGET)
    windows = torch.cat([texts.prose.held_out, texts.code.held_out])
    rows = audit_rows(*llama, windows, dictionary, range(42, 45), 4)
    tables.write(tmp_path / "audit.parquet", "learned_audit", rows, {})
    assert {row["claim"] for row in rows} == {
        "attribution",
        "active coordinates",
        "contrast direction",
        "active feed-forward units",
        "active dictionary features",
    }
    assert all(row["mapped_overlap"] == 1 for row in rows)
    assert np.mean([row["raw_overlap"] for row in rows]) < 0.6


def test_renumbered_features_say_the_same():
    generator = torch.Generator().manual_seed(4)
    states = torch.randn(20, 12, generator=generator)
    arrays = learn_dictionary(torch.randn(100, 12, generator=generator), BUDGET)
    other, order = renumbered(arrays, 7)
    codes, moved = (codes_of(each, states, BUDGET.active) for each in (arrays, other))
    torch.testing.assert_close(moved[:, torch.from_numpy(order)], codes)
    torch.testing.assert_close(decoded(other, moved), decoded(arrays, codes))
    assert not torch.equal(moved, codes)


def test_agreement_counts_places_and_signs(llama):
    gauge = learned_transport.without_scales(
        learned_transport.random_gauge(llama[1], 42, ("residual",))
    )
    assert isinstance(gauge, Gauge)
    right = learned_transport.agreement(gauge, gauge)
    assert right["places_recovered"] == right["signs_recovered"] == 1
    wrong = learned_transport.agreement(gauge, gauge.without_signs())
    assert wrong["places_recovered"] == 1
    assert wrong["signs_recovered"] == pytest.approx(1 - right["negative"])
