"""The measurements of one checkpoint: everything admissible passes, every control fails as it must,
recovery is complete.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from normgauge.anatomy import describe
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.configuration import parse_config
from normgauge.errors import InputError
from normgauge.gauge.activations import Activations
from normgauge.gauge.admissible import Group, admissible
from normgauge.gauge.groups import Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.probes import require_same_tokens, shortened
from normgauge.gauge.random_gauges import random_element, random_gauge
from normgauge.gauge.transform import apply_moves, tensor_moves, transformed
from normgauge.schemas.signed_permutation import tables
from normgauge.schemas.verdicts import control_verdict, law_verdict, summarised
from normgauge.signed_permutation import boundary, resumed_training
from normgauge.signed_permutation.artifact_transport import (
    relative_error,
    sign_energy,
    transport_rows,
)
from normgauge.signed_permutation.artifacts import drawn_artifacts
from normgauge.signed_permutation.boundary import (
    DRAWN,
    STORED,
    equivalence_rows,
    with_drawn_constants,
)
from normgauge.signed_permutation.name_audit import middle_site
from normgauge.signed_permutation.natural_alignment import (
    alignment_rows,
    common_group,
    holonomy_rows,
    stream_activations,
)
from normgauge.signed_permutation.recorded_gauges import recovery_rows
from normgauge.signed_permutation.resumed_training import optimizer_artifacts
from normgauge.transport import optimizers
from unit.gauge_models import CLASSES, SCEPTR, inputs_of, tiny
from unit.test_anatomy import without_effect

LLAMA = ("llama", "LlamaForCausalLM")


def probes(anatomy, count: int = 8) -> list[Batch]:
    generator = torch.Generator().manual_seed(9)
    stack = anatomy.primary_stack.name
    return [
        Batch({"input_ids": torch.randint(2, 17, (3, 9), generator=generator)}, {stack: None})
        for _ in range(count)
    ]


# ---------------------------------------------------------------- the boundary of the group


@pytest.mark.parametrize(("case", "architecture"), [*CLASSES, (SCEPTR, "Sceptr")])
def test_every_family_keeps_its_group_and_nothing_else(case, architecture, tmp_path):
    checkpoint, anatomy = tiny(case, architecture)
    rows = equivalence_rows(
        checkpoint,
        anatomy,
        [Batch(inputs_of(case, architecture), {})],
        (42,),
        ("float64", "float32"),
    )
    tables.write(tmp_path / "equivalence.parquet", "equivalence", rows, {})
    assert {row["verdict"] for row in rows} == {"passed"}, [
        row for row in rows if row["verdict"] != "passed"
    ]
    assert all((row["predicted_effect"] is None) == row["admissible"] for row in rows)
    exact = [row for row in rows if row["forward_dtype"] == "float64"]
    assert max(row["relative_deviation"] for row in exact if row["admissible"]) <= 1e-10
    assert min(row["relative_deviation"] for row in exact if not row["admissible"]) >= 1e-7
    assert {row["admissible"] for row in exact} == {True, False}
    assert {row["parameters"] for row in rows} == {STORED}


def test_the_families_that_an_architecture_has():
    def groups(case, architecture):
        return [
            case_.group.removeprefix("residual: ")
            for case_ in boundary.cases(tiny(case, architecture)[0], 42, torch.float64)
        ]

    assert "null line" in groups("gpt2", "GPT2LMHeadModel")
    assert "rotation, gains absorbed" in groups(*LLAMA)
    assert "null line" not in groups(*LLAMA)  # RMSNorm keeps the mean
    assert "rotation, gains absorbed" not in groups("bert", "BertModel")  # post-norm
    assert "independent signs" not in groups(*LLAMA)  # there they are admissible


def test_gains_that_cost_too_much_are_not_absorbed():
    checkpoint, anatomy = tiny("gpt2", "GPT2LMHeadModel")
    norm = next(norm for norm in anatomy.norms if norm.space == anatomy.primary_stack.space)
    gain = checkpoint.tensors[norm.gain].clone()
    gain[5] = 1e-5
    collapsed = replace(checkpoint, tensors={**checkpoint.tensors, norm.gain: gain})
    turned = "residual: rotation, gains absorbed"
    tried = {
        dtype: {case.group for case in boundary.cases(collapsed, 42, dtype)}
        for dtype in (torch.float64, torch.float32)
    }
    assert turned in tried[torch.float64]
    assert turned not in tried[torch.float32]


def test_a_wrong_transform_is_seen(monkeypatch):
    """One tensor that is left where it was, of a model whose every other tensor moves."""
    checkpoint, anatomy = tiny(*LLAMA)

    def forgetful(*given):
        return {**moves(*given), "model.layers.0.mlp.up_proj.weight": ()}

    moves = boundary.tensor_moves
    monkeypatch.setattr(boundary, "tensor_moves", forgetful)
    rows = equivalence_rows(checkpoint, anatomy, probes(anatomy, 1), (42,), ("float64",))
    assert (
        next(row for row in rows if row["group"] == "residual: signed permutation")["verdict"]
        == "failed"
    )


def test_constant_gains_are_drawn_since_they_admit_rotations():
    checkpoint, anatomy = tiny("gemma3", "Gemma3ForCausalLM")
    gains = {norm.gain: norm.gain_offset for norm in anatomy.norms}
    fresh = replace(
        checkpoint,
        tensors={
            name: torch.zeros_like(v) if name in gains else v
            for name, v in checkpoint.tensors.items()
        },
    )
    control = "residual: rotation, gains not absorbed"
    batches = probes(anatomy, 1)
    plain = {
        row["group"]: row for row in equivalence_rows(fresh, anatomy, batches, (42,), ("float64",))
    }
    drawn = {
        row["group"]: row
        for row in equivalence_rows(fresh, anatomy, batches, (42,), ("float64",), fresh=True)
    }
    # with gains of one it is in the group
    assert (plain[control]["verdict"], plain[control]["predicted_effect"]) == ("no power", 0)
    assert drawn[control]["verdict"] == "passed"
    assert drawn[control]["parameters"] == DRAWN
    found = with_drawn_constants(fresh, anatomy, 42).tensors
    for name, offset in gains.items():
        assert 0.5 <= float(found[name].min()) + offset < float(found[name].max()) + offset <= 1.5
    assert all(
        torch.equal(found[name], value)
        for name, value in fresh.tensors.items()
        if name not in gains
    )


# ---------------------------------------------------------------- recorded gauges


def test_exact_recovery_rows(tmp_path):
    checkpoint, anatomy = tiny(*LLAMA)
    rows = recovery_rows(checkpoint, anatomy, probes(anatomy), (42, 43), (22, 200))
    tables.write(tmp_path / "recovery.parquet", "gauge_recovery", rows, {})
    stream = [row for row in rows if row["part"] == "residual"]
    matched = [row for row in stream if row["match"] == "in the group"]
    signless = [row for row in stream if row["match"] == "control: no signs"]
    assert {row["tokens"] for row in matched} == {22, 200}
    assert len(matched) == 2 * 2 * (4 + 1)  # seeds, budgets, sites and all of them together
    assert {row["method"].partition(" on ")[2] for row in matched} == {"|C|"}
    assert [(row["site"], row["sites"], row["tokens"]) for row in signless] == [
        ("all sites", 4, 200)
    ] * 2
    assert all(
        row["permutation_accuracy"] == row["sign_accuracy"] == 1
        for row in matched
        if row["tokens"] == 200
    )
    assert all(row["certain_accuracy"] in (None, 1) for row in matched)
    assert sum(row["permutation_accuracy"] for row in signless) / len(signless) < 0.8
    assert {row["method"] for row in stream if row["match"] == "control: greedy"} == {
        "greedy on |C|"
    }
    inside = [row for row in rows if row["part"] != "residual"]
    assert {row["part"] for row in inside} == {"feed-forward", "heads"}
    assert all(
        row["permutation_accuracy"] == 1 and row["uncertain"] == 0 and row["map_error"] < 1e-6
        for row in inside
    )
    assert all(
        row["query_error"] < 1e-6 and row["condition"] < 100
        for row in inside
        if row["part"] == "heads"
    )
    few = [
        row
        for row in recovery_rows(checkpoint, anatomy, probes(anatomy), (42,), (10,))
        if row["part"] == "heads"
    ]
    assert {row["tokens"] for row in few} == {3 * 6}  # three per coordinate of a head
    with pytest.raises(InputError, match="216 samples in the probes, 500 asked for"):
        recovery_rows(checkpoint, anatomy, probes(anatomy), (42,), (500,))


# ---------------------------------------------------------------- natural alignment


def test_alignment_rows(tmp_path):
    """The 'other training run' is the model itself under a gauge, with noise on its weights."""
    checkpoint, anatomy = tiny(*LLAMA)
    truth = random_element(anatomy, "residual", 42)
    moved = transformed(checkpoint, anatomy, Gauge({"residual": truth}))
    generator = torch.Generator().manual_seed(1)
    noisy = replace(
        moved,
        tensors={
            n: v + 0.02 * torch.randn(v.shape, generator=generator)
            for n, v in moved.tensors.items()
        },
    )
    models = {"own": checkpoint, "copy": noisy}
    group = common_group(models)
    assert group == Group.SIGNED_PERMUTATION
    activations = stream_activations(models, probes(anatomy, 16))
    rows = alignment_rows(activations, (200, 10), group)
    tables.write(tmp_path / "alignment.parquet", "gauge_alignment", rows, {})
    matched = [row for row in rows if row["match"] == "in the group"]
    whole = [row for row in matched if row["tokens"] == 200]
    few = [row for row in matched if row["tokens"] == 10]
    assert {row["agreement"] for row in whole} == {row["split_half"] for row in whole} == {1.0}
    assert {row["reference_tokens"] for row in rows} == {200}
    assert all(row["negative"] == float((truth.factors < 0).mean()) for row in whole)
    assert all(row["unmoved"] == float((truth.target == np.arange(12)).mean()) for row in whole)
    assert sum(row["certain"] for row in few) < sum(row["certain"] for row in whole)
    assert all(row["certain_agreement"] in (None, 1) for row in few)
    assert {(row["site"] == "all sites", row["site_agreement"]) for row in whole} == {
        (True, 1.0),
        (False, None),
    }
    assert {(row["site"], row["sites"]) for row in rows if row["match"] == "control: no signs"} == {
        ("all sites", 3)
    }
    with pytest.raises(InputError, match=r"bert: residual streams .* align models of one shape"):
        stream_activations({"own": checkpoint, "bert": tiny("bert", "BertModel")[0]}, [])
    with pytest.raises(InputError, match="216 samples in half of the probes, 500 asked for"):
        alignment_rows(activations, (500,), group)


def test_layer_norm_streams_are_aligned_with_one_sign():
    """Their two heads differ: of the two groups the smaller is right for both."""
    masked, bare = tiny("bert", "BertForMaskedLM")[0], tiny("bert", "BertModel")[0]
    assert common_group({"a": masked, "b": bare}) == Group.PERMUTATION
    assert common_group({"b": bare}) == Group.COMMON_SIGN
    generator = torch.Generator().manual_seed(1)
    streams = {
        name: {"x": Activations(torch.randn(400, 12, generator=generator), (20,) * 20)}
        for name in ("a", "b")
    }
    rows = alignment_rows(streams, (50, 200), Group.COMMON_SIGN)
    assert {row["negative"] for row in rows if row["match"] == "in the group"} <= {0.0, 1.0}
    assert 0 < min(row["negative"] for row in rows if row["match"] == "control: free signs") < 1
    assert not any(
        row["sign_certain"] or row["certain"] for row in rows if row["match"] == "in the group"
    )


def test_the_reference_of_a_match_shares_no_sequence_with_it():
    """Two models that agree on half of the sequences alone: were the halves mixed, the match would
    agree with its reference.
    """
    generator = torch.Generator().manual_seed(3)
    one = torch.randn(400, 12, generator=generator)
    other = one.clone()
    turned = Monomial.random(12, 1).apply(one)
    for number in range(1, 20, 2):  # the second half of `halves`
        other[20 * number : 20 * (number + 1)] = turned[20 * number : 20 * (number + 1)]
    streams = {
        name: {"x": Activations(rows, (20,) * 20)} for name, rows in (("a", one), ("b", other))
    }
    row = next(
        row
        for row in alignment_rows(streams, (200,), Group.SIGNED_PERMUTATION)
        if row["match"] == "in the group"
    )
    assert row["certain"] == row["unmoved"] == 1
    assert (
        row["agreement"]
        == row["split_half"]
        == float((Monomial.random(12, 1).target == np.arange(12)).mean())
    )
    assert row["certain_agreement"] < 0.5


def test_holonomy_rows(tmp_path):
    """Gauged copies of one model come back around a cycle; a model of its own does not."""
    checkpoint, anatomy = tiny(*LLAMA)
    copies = {
        name: transformed(checkpoint, anatomy, Gauge({"residual": Monomial.random(12, seed)}))
        for name, seed in (("b", 1), ("c", 2))
    }
    activations = dict(stream_activations({"a": checkpoint, **copies}, probes(anatomy)))
    rows = holonomy_rows(activations, Group.SIGNED_PERMUTATION)
    tables.write(tmp_path / "holonomy.parquet", "gauge_holonomy", rows, {})
    assert {(row["cycle"], row["moved"], row["certain"], row["certain_moved"]) for row in rows} == {
        ("a - b - c", 0.0, 1.0, 0.0)
    }
    generator = torch.Generator().manual_seed(1)
    for name in ("b", "c"):
        activations[name] = {
            site: Activations(torch.randn(value.rows.shape, generator=generator), value.lengths)
            for site, value in activations[name].items()
        }
    assert {row["site"] for row in rows} == {"all sites", *activations["a"]}
    strange = holonomy_rows(activations, Group.SIGNED_PERMUTATION)
    assert min(row["moved"] for row in strange) > 0.5
    assert max(row["certain"] for row in strange) < 0.5
    assert len(holonomy_rows(dict(list(activations.items())[:2]), Group.SIGNED_PERMUTATION)) == 0


# ---------------------------------------------------------------- artifacts


@pytest.mark.parametrize(
    ("case", "architecture"), [LLAMA, ("gpt2", "GPT2LMHeadModel"), ("albert", "AlbertModel")]
)
def test_transport_rows(case, architecture, tmp_path):
    checkpoint, anatomy = tiny(case, architecture)
    rows = transport_rows(checkpoint, anatomy, probes(anatomy, 2), (42, 43))
    tables.write(tmp_path / "transport.parquet", "gauge_transport", rows, {})
    assert (
        {row["transported"] for row in rows} == {row["raw_control"] for row in rows} == {"passed"}
    )
    assert all(
        (row["permutation_control"] == "no power") == (row["predicted_error"] == 0) for row in rows
    )
    assert {row["permutation_control"] for row in rows} <= {"passed", "no power"}
    assert all(row["raw_deviation"] > 1e-3 for row in rows)
    assert all(
        row["permutation_error"] == pytest.approx(row["predicted_error"], rel=1e-9) for row in rows
    )
    assert any(row["predicted_error"] > 0.5 for row in rows) == (case == "llama")
    drawn = {"steering vector", "dictionary", *(["LoRA adapter"] if case != "albert" else [])}
    assert {row["artifact"] for row in rows} == drawn | {"AdamW state", "SGD momentum"}


@pytest.mark.parametrize(("case", "architecture"), [*CLASSES, (SCEPTR, "Sceptr")])
def test_a_resumed_step_gives_the_moved_weights(case, architecture):
    checkpoint, anatomy = tiny(case, architecture)
    wide = replace(
        checkpoint, tensors={name: value.double() for name, value in checkpoint.tensors.items()}
    )
    gauge = random_gauge(anatomy, 42, (anatomy.primary_stack.space,))
    models = [build_model(each, "float64") for each in (wide, transformed(wide, anatomy, gauge))]
    before = {name: value.clone() for name, value in models[0].state_dict().items()}
    moves = tensor_moves(anatomy, gauge)
    unseen = without_effect(anatomy)  # their gradients are rounding, which AdamW scales up
    for artifact in optimizer_artifacts(
        models[0], anatomy, middle_site(anatomy), inputs_of(case, architecture)
    ):
        with artifact.act(models[0], artifact.content, Gauge({})):
            stepped = {name: value.clone() for name, value in models[0].state_dict().items()}
        with artifact.act(models[1], artifact.move(artifact.content, gauge), gauge):
            resumed_ = {name: value.clone() for name, value in models[1].state_dict().items()}
        trained = [name for name, value in before.items() if not torch.equal(stepped[name], value)]
        assert max(float((stepped[name] - before[name]).abs().max()) for name in trained) > 1e-4
        for name in set(trained) - unseen:
            torch.testing.assert_close(
                resumed_[name], apply_moves(stepped[name], moves[name]), rtol=1e-9, atol=1e-9
            )
    assert all(torch.equal(value, before[name]) for name, value in models[0].state_dict().items())
    assert not any(parameter.requires_grad for parameter in models[0].parameters())


@pytest.mark.parametrize("fault", ["unmoved", "signed squares"])
def test_a_state_that_is_moved_wrongly_is_seen(fault, monkeypatch):
    checkpoint, anatomy = tiny(*LLAMA)
    if fault == "unmoved":
        monkeypatch.setattr(resumed_training, "moved_state", lambda state, *_: state)
    else:
        monkeypatch.setattr(optimizers, "FIRST", (*optimizers.FIRST, "exp_avg_sq"))
    rows = {
        row["artifact"]: row
        for row in transport_rows(checkpoint, anatomy, probes(anatomy, 1), (42,))
    }
    assert rows["AdamW state"]["transported"] == "failed"
    assert (rows["SGD momentum"]["transported"] == "passed") == (fault != "unmoved")
    assert rows["LoRA adapter"]["transported"] == "passed"


def test_the_prediction_needs_the_right_signs():
    checkpoint, anatomy = tiny(*LLAMA)
    gauge = Gauge({"residual": Monomial.random(12, 42)})
    site = middle_site(anatomy)
    states = optimizer_artifacts(
        build_model(checkpoint, "float64"), anatomy, site, probes(anatomy, 1)[0].inputs
    )
    for artifact in (*drawn_artifacts(anatomy, site, 1.0, 42), *states):
        signed, permuted = (
            artifact.move(artifact.content, used) for used in (gauge, gauge.without_signs())
        )
        error = relative_error(artifact, permuted, signed)
        assert error == pytest.approx(sign_energy(artifact, gauge.elements["residual"]))
        assert error != pytest.approx(sign_energy(artifact, Monomial.random(12, 43)))


def test_what_a_control_predicts():
    """A gauge without negative signs, and one that moves nothing, leave the controls nothing to
    show.
    """
    checkpoint, anatomy = tiny(*LLAMA)
    element = Monomial.random(12, 42)
    assert boundary.sign_distance(Gauge({"residual": Monomial.identity(12)}), False) == 0
    flipped = Gauge({"residual": Monomial(np.arange(12), [-1.0] * 3 + [1.0] * 9)})
    opposite = Gauge({"residual": Monomial(np.arange(12), [1.0] * 3 + [-1.0] * 9)})
    assert (
        boundary.sign_distance(flipped, True)
        == boundary.sign_distance(opposite, True)
        == boundary.sign_distance(flipped, False)
        == 1
    )
    assert boundary.sign_distance(opposite, False) == pytest.approx(3**0.5)
    turn = Gauge({"residual": Orthogonal.random(12, 42)})
    gains = [checkpoint.tensors[norm.gain].double().numpy() for norm in anatomy.norms]
    matrix = turn.elements["residual"].matrix
    expected = max(
        np.linalg.norm(gain[:, None] * matrix - matrix * gain) / np.linalg.norm(gain)
        for gain in gains
    )
    assert boundary.gain_distance(checkpoint, anatomy, turn) == pytest.approx(expected)
    artifact = next(drawn_artifacts(anatomy, middle_site(anatomy), 1.0, 42))
    assert sign_energy(artifact, element.permutation()) == 0
    assert (
        relative_error(
            artifact,
            artifact.content,
            artifact.move(artifact.content, Gauge({"residual": Monomial.identity(12)})),
        )
        == 0
    )


@pytest.mark.parametrize(
    ("predicted", "shown", "verdict"),
    [
        (0.0, True, "no power"),
        (0.0, False, "no power"),
        (9.9e-9, True, "no power"),
        (1.1e-8, True, "passed"),
        (1.1e-8, False, "failed"),
    ],
)
def test_a_control_passes_only_with_power(predicted, shown, verdict):
    assert control_verdict(predicted, shown, 1e-10) == verdict
    assert law_verdict(True, [control_verdict(predicted, shown, 1e-10)]) == (
        "no power" if verdict == "no power" else "passed"
    )
    assert law_verdict(False, []) == "failed"


def test_an_audited_model_that_is_made_offline_admits_signs():
    """Else the control by the permutation alone has no power in the default study."""
    root = Path(__file__).parents[2]
    audited = yaml.safe_load((root / "config/config.yaml").read_text())["signed_permutation"][
        "audited"
    ]
    shapes = [root / f"config/shapes/{name}.json" for name in audited]
    anatomies = [
        describe(parse_config(json.loads(shape.read_text()))) for shape in shapes if shape.exists()
    ]
    assert Group.SIGNED_PERMUTATION in [
        admissible(each, each.primary_stack.space).group for each in anatomies
    ]


def test_repetitions_pass_together():
    assert summarised(["passed", "passed"]) == "passed"
    assert summarised(["passed", "no power"]) == "no power"
    assert summarised(["no power", "failed"]) == "failed"


def test_shortened_probes():
    mask = torch.ones(2, 9, dtype=torch.bool)
    batch = Batch(
        {
            "input_ids": torch.zeros(2, 9, dtype=torch.int64),
            "input_features": torch.zeros(2, 80, 30),
        },
        {"a": mask, "b": None},
    )
    (short,) = shortened([batch], 4)
    assert {name: list(value.shape) for name, value in short.inputs.items()} == {
        "input_ids": [2, 4],
        "input_features": [2, 80, 30],
    }
    assert short.masks["a"].shape == (2, 4)
    assert short.masks["b"] is None


def test_models_of_different_tokenizers_are_not_compared(tmp_path):
    folders = {name: tmp_path / name for name in ("a", "b", "c", "none")}
    for folder in folders.values():
        folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "light", "##er", "dark"]
    for name, vocabulary in (
        ("a", words),
        ("b", words),
        ("c", [*words[:-3], *reversed(words[-3:])]),
    ):
        (folders[name] / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    require_same_tokens(folders["a"], folders["b"])
    require_same_tokens(folders["a"], folders["none"])
    with pytest.raises(InputError, match="compare models of one tokenizer"):
        require_same_tokens(folders["a"], folders["c"])
