"""Redundant directions: every family keeps the function, together they are the Jacobian's null
space, and faults show.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from normgauge.anatomy import describe
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.configuration import parse_config
from normgauge.checkpoints.opening import Checkpoint
from normgauge.errors import InputError
from normgauge.redundancy import checks, measure, symmetries, trained
from normgauge.redundancy.checks import check_rows
from normgauge.redundancy.controls import scale_distance
from normgauge.redundancy.counts import STATED, check_claims, claimed, count_row, symmetry_rows
from normgauge.redundancy.falsifier import falsifier_rows
from normgauge.redundancy.family import Kind, Symmetry, dimensions
from normgauge.redundancy.files import read_shape, write_counts
from normgauge.redundancy.jacobian import (
    count_parameters,
    decide_rank,
    head_outputs,
    span_dimension,
    tangents,
)
from normgauge.redundancy.measure import (
    measurement,
    measurement_without_gains,
    random_checkpoint,
    random_inputs,
    with_norms,
)
from normgauge.redundancy.readers import stored
from normgauge.redundancy.skip_rotations import skip_rows
from normgauge.schemas.redundancy import tables
from unit.gauge_models import tiny

SHAPES = Path(__file__).parents[2] / "config" / "shapes"
SMALL = sorted((SHAPES / "small").glob("*.json"))
MEASURED = ("gpt2", "bert", "gpt2-relu", "llama", "qwen3")
TOLERANCE, FAULT = 1e-10, 1e-4


def small(name: str):
    return read_shape(SHAPES / "small" / f"tiny-{name}.json")


def shallow(name: str):
    """The same with one block, for faults that any depth shows."""
    config = small(name)
    config.num_hidden_layers = 1
    return config


def deviation_of(config, act, seed: int = 1) -> float:
    """Relative change of all outputs under a change of the stored tensors of a random model."""
    anatomy = describe(config)
    checkpoint = random_checkpoint(config, seed)
    tensors = stored(anatomy, checkpoint.tensors)
    inputs = random_inputs(config, 4, seed)
    models = [
        build_model(dataclasses.replace(checkpoint, tensors=each), "float64")
        for each in (tensors, act(anatomy, tensors))
    ]
    with torch.inference_mode():
        before, after = (head_outputs(model(**inputs)) for model in models)
    return float((after - before).abs().max() / before.abs().max())


def at_random_place(kind: Kind):
    def act(anatomy, tensors):
        generator = np.random.default_rng(3)
        for symmetry in symmetries.symmetries(anatomy):
            if symmetry.kind == kind:
                tensors = symmetry.act(tensors, 0.3 * generator.standard_normal(symmetry.dimension))
        return tensors

    return act


def test_the_hessian_of_the_loss_is_flat_along_the_families_and_nowhere_else():
    config = shallow("llama")
    anatomy = describe(config)
    ids = trained.chain(config.vocab_size, 1)
    checkpoint, losses = trained.trained(random_checkpoint(config, 1), anatomy, ids, iterations=20)
    assert losses[1] < losses[0]
    gradient, hessian = trained.derivatives(checkpoint, anatomy, ids)
    largest = float(np.abs(np.linalg.eigvalsh(hessian)).max())
    tensors = stored(anatomy, checkpoint.tensors)
    found = [each for each in symmetries.symmetries(anatomy) if each.kind != Kind.ROTATION]
    for symmetry in found:
        row = trained.along(anatomy, tensors, symmetry.kind, [symmetry], gradient, hessian, largest)
        assert row["orbit"] < 1e-6, symmetry.kind
    # a scale of the queries alone is none
    name = next(each for each in tensors if each.endswith("q_proj.weight"))

    def scaled(values, coordinates):
        return {**values, name: values[name] * float(np.exp(coordinates[0]))}

    wrong = Symmetry(Kind.QUERY_KEY, name, 1, scaled)
    row = trained.along(anatomy, tensors, wrong.kind, [wrong], gradient, hessian, largest)
    assert row["orbit"] > 1e-5
    every = tangents(anatomy, tensors, found)
    assert trained.off(every, hessian, largest, 1)["curvature"] > 1e-5


# ---------------------------------------------------------------- the families


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_every_family_keeps_the_function_and_moves_something(path):
    config = read_shape(path)
    anatomy = describe(config)
    found = dimensions(symmetries.symmetries(anatomy))
    assert len(found) >= 4
    for kind in found:
        assert deviation_of(config, at_random_place(kind)) <= TOLERANCE, kind
        checkpoint = stored(anatomy, random_checkpoint(config, 1).tensors)
        moved = at_random_place(kind)(anatomy, checkpoint)
        assert any(not torch.equal(moved[name], value) for name, value in checkpoint.items()), kind


def test_the_small_models_have_every_family_between_them():
    assert {
        kind
        for path in SMALL
        for kind in dimensions(symmetries.symmetries(describe(read_shape(path))))
    } == set(Kind)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Kind.VALUE_BIAS, "gpt2"),
        (Kind.BIAS, "bert"),
        (Kind.KERNEL, "gpt2"),
        (Kind.GAIN, "llama"),
        (Kind.HEAD_GAIN, "qwen3"),
    ],
)
def test_a_family_whose_compensation_is_left_out_changes_the_function(kind, name):
    def uncompensated(anatomy, tensors):
        moved = at_random_place(kind)(anatomy, tensors)
        changed = [each for each in moved if not torch.equal(moved[each], tensors[each])]
        return {**moved, changed[-1]: tensors[changed[-1]]}

    assert deviation_of(small(name), uncompensated) > FAULT


# ---------------------------------------------------------------- the Jacobian


@pytest.fixture(scope="module", params=MEASURED)
def measured(request):
    return measurement(request.param, small(request.param), 1)


def test_the_nullity_is_the_corrected_count(measured):
    assert measured["unused"] == 0
    assert (
        measured["nullity"]
        == measured["corrected"]
        == measured["tangent_rank"]
        == measured["explained"]
    )
    assert measured["decided"]
    assert measured["agrees"]
    assert measured["largest_zero"] < measured["floor"] < 1e-3 * measured["smallest_nonzero"]
    assert measured["violation"] < 1e-6


@pytest.mark.parametrize(("name", "nullity"), [("gpt2-untied", 328), ("llama", 88)])
def test_without_gains_the_rotation_stays_and_the_families_of_norms_go(name, nullity):
    """The published nullities of models whose norms have no gains."""
    found = measurement_without_gains(name, small(name), 1)
    assert found["nullity"] == found["corrected"] == found["explained"] == nullity
    assert found["agrees"]


def test_without_gains_a_tied_readout_is_refused():
    with pytest.raises(InputError, match="tied"):
        measurement_without_gains("gpt2", small("gpt2"), 1)


def test_a_forgotten_family_does_not_agree(monkeypatch):
    every = symmetries.symmetries
    monkeypatch.setattr(
        measure,
        "symmetries",
        lambda anatomy: tuple(each for each in every(anatomy) if each.kind != Kind.KEY_BIAS),
    )
    row = measurement("gpt2", shallow("gpt2"), 1)
    assert row["nullity"] - row["explained"] == 8
    assert not row["agrees"]


def test_a_family_counted_twice_and_a_wrong_one_show(monkeypatch):
    every = symmetries.symmetries

    def faulty(anatomy):
        found = every(anatomy)
        twice = next(each for each in found if each.kind == Kind.VALUE_BIAS)
        gain = next(norm.gain for norm in anatomy.norms)
        wrong = dataclasses.replace(
            twice,
            dimension=1,
            act=lambda tensors, step: {**tensors, gain: tensors[gain] * (1 + float(step[0]))},
        )
        return (*found, twice, wrong)

    monkeypatch.setattr(measure, "symmetries", faulty)
    row = measurement("gpt2-headless", shallow("gpt2-headless"), 1)
    assert row["corrected"] > row["tangent_rank"]
    assert row["violation"] > FAULT
    assert not row["agrees"]


def test_a_family_counted_twice_alone_does_not_agree(monkeypatch):
    every = symmetries.symmetries

    def again(anatomy):
        first = next(each for each in every(anatomy) if each.kind == Kind.VALUE_BIAS)
        return (*every(anatomy), first)

    monkeypatch.setattr(measure, "symmetries", again)
    row = measurement("gpt2-headless", shallow("gpt2-headless"), 1)
    assert row["decided"]
    assert row["nullity"] == row["explained"] == row["tangent_rank"] < row["corrected"]
    assert row["violation"] < measure.LEFT_ALONE
    assert not row["agrees"]


def test_a_wrong_direction_in_the_place_of_a_right_one_does_not_agree(monkeypatch):
    """The count and the spans are right; what the direction does to the outputs alone shows the
    fault.
    """
    every = symmetries.symmetries

    def exchanged(anatomy):
        found = list(every(anatomy))
        place = next(number for number, each in enumerate(found) if each.kind == Kind.VALUE_BIAS)
        gain = next(norm.gain for norm in anatomy.norms)
        right = found[place].act

        def act(tensors, step):
            moved = right(tensors, np.concatenate([[0.0], step[1:]]))
            return {**moved, gain: tensors[gain] * (1 + float(step[0]))}

        found[place] = dataclasses.replace(found[place], act=act)
        return tuple(found)

    monkeypatch.setattr(measure, "symmetries", exchanged)
    row = measurement("gpt2-headless", shallow("gpt2-headless"), 1)
    assert row["nullity"] == row["explained"]
    assert row["corrected"] == row["tangent_rank"]
    assert row["violation"] > FAULT
    assert not row["agrees"]


def test_rows_that_padding_or_distance_leave_unused_are_told_apart():
    row = measurement("t5", small("t5"), 1)
    assert row["unused"] == 2
    assert row["nullity"] == row["explained"] == row["corrected"] + 2
    assert row["agrees"]


def test_the_padding_row_is_part_of_the_derivative():
    config = shallow("llama")
    config.pad_token_id = 0
    assert measurement("padded", config, 1)["unused"] == 0


@pytest.mark.parametrize(
    ("name", "key", "scales"),
    [
        ("gpt2", "layer_norm_epsilon", 1),
        ("bert", "layer_norm_eps", 3),
        ("qwen3", "rms_norm_eps", 4),
    ],
)
def test_epsilon_is_what_breaks_the_scales(name, key, scales):
    config = shallow(name)
    setattr(config, key, 0.0)
    row = measurement(name, config, 1)
    assert row["nullity"] - row["corrected"] == scales
    assert row["decided"]
    assert not row["agrees"]


def test_a_rank_is_decided_by_its_gap_only():
    generator = np.random.default_rng(0)
    left, right = (np.linalg.qr(generator.standard_normal((rows, 40)))[0] for rows in (60, 40))
    values = np.concatenate([np.geomspace(1, 1e-6, 30), np.zeros(10)])
    found = decide_rank((left * values) @ right)
    assert (found.rank, found.decided) == (30, True)
    assert found.smallest_nonzero == pytest.approx(1e-6, rel=1e-3)
    values[30:] = np.geomspace(1e-8, 1e-17, 10)
    assert not decide_rank((left * values) @ right).decided


def test_a_span_has_the_dimension_of_its_independent_directions():
    basis = np.eye(6)[:, :3]
    assert span_dimension(np.concatenate([basis, basis[:, :1]], 1)) == 3


# ---------------------------------------------------------------- counts


@pytest.mark.parametrize(
    ("name", "count", "share", "status"),
    [
        ("gpt2", 1_473_409, 0.013, STATED),
        ("gpt2", 1_473_409, 0.014, "deviates"),
        ("gpt2-xl", 11_108_001, 0.007, "reproduced"),
        ("llama-65b", 201_314_305, 0.003, "reproduced"),
    ],
)
def test_the_claimed_count(name, count, share, status):
    config = read_shape(SHAPES / f"{name}.json")
    row = count_row(
        name, "shape", config, {"published_share": share, "stated_parameters": 117_000_000}, None
    )
    assert row["claimed"] == claimed(describe(config)) == count
    assert row["status"] == status
    if status == STATED:
        assert round(row["claimed_share_stated"], 3) == share != round(row["claimed_share"], 3)


def test_the_corrected_count_of_gpt2_by_hand():
    layers, heads, size, width, units, positions = 12, 12, 64, 768, 3072, 1024
    norms = 2 * 2 * width  # gains and biases of two norms
    kernel = 3 * width + units
    null = width + 1 + units + 1
    by_hand = layers * (2 * heads * size**2 + norms + kernel + null + 2 * width) + positions
    config = read_shape(SHAPES / "gpt2.json")
    row = count_row("gpt2", "shape", config, None, None)
    assert (
        row["corrected"]
        == by_hand
        == sum(each["dimension"] for each in symmetry_rows("gpt2", config))
    )
    assert row["parameters"] == count_parameters(describe(config)) == 124_439_808


def test_the_corrected_count_of_llama_by_hand():
    layers, heads, size, width, units = 80, 64, 128, 8192, 22016
    by_hand = (
        layers * (heads * (size + size**2) + units + 2 * width) + width + width * (width - 1) // 2
    )
    assert (
        count_row("llama", "shape", read_shape(SHAPES / "llama-65b.json"), None, None)["corrected"]
        == by_hand
    )


@pytest.mark.parametrize(
    ("case", "architecture", "reason"),
    [
        ("albert", "AlbertModel", "blocks share their weights"),
        ("dinov2", "Dinov2Model", "layer_scale"),
        ("vit", "ViTModel", "cls_token enters the stream at some positions alone"),
        ("sceptr", "Sceptr", "two maps meet in features"),
    ],
)
def test_models_whose_symmetries_are_not_derived_are_refused(case, architecture, reason):
    with pytest.raises(InputError, match=reason):
        symmetries.symmetries(tiny(case, architecture)[1])


def test_a_head_as_wide_as_the_stream_is_refused():
    config = small("llama")
    config.head_dim = config.hidden_size
    with pytest.raises(InputError, match="as wide as the stream"):
        symmetries.symmetries(describe(config))


@pytest.mark.parametrize(
    "claims",
    [
        ["gpt2"],
        {"gpt2": 0.013},
        {"gpt2": {"share": 1.3}},
        {"gpt2": {"published_share": "1.3 %"}},
        {"gpt2": {"published_share": True}},
    ],
)
def test_claims_that_cannot_be_read_are_refused(claims):
    with pytest.raises(InputError, match=r"claims\.yaml"):
        check_claims(claims, "claims.yaml")


def test_a_claims_file_that_is_no_yaml_is_refused(tmp_path):
    tables.write(tmp_path / "jacobian.parquet", "redundancy_jacobian", [], {})
    (tmp_path / "claims.yaml").write_text("gpt2: {published_share: [")
    with pytest.raises(InputError, match=r"claims\.yaml: cannot be read as YAML"):
        write_counts({}, {}, [], tmp_path / "jacobian.parquet", [], tmp_path / "claims.yaml", {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["claims.yaml", "jacobian.parquet"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "expected a JSON object"),
        ("{}", "model_type"),
    ],
)
def test_shapes_that_cannot_be_read_are_refused(tmp_path, text, said):
    path = tmp_path / "shape.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_shape(path)


def test_two_architectures_of_one_name_are_refused(tmp_path):
    shape = SHAPES / "gpt2.json"
    with pytest.raises(InputError, match=r"gpt2.*twice"):
        write_counts(
            {"gpt2": shape}, {}, [shape], tmp_path / "none.parquet", [], tmp_path / "none.yaml", {}
        )
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------- the claim, and the checks of a checkpoint


def test_the_claimed_rotation_fails_with_gains_and_holds_without():
    rows = falsifier_rows(2)
    block = [row for row in rows if row["test"] == "output of one block"]
    assert len(block) == 12
    for row in block:
        assert row["holds"] == (row["gain"] == "one" and row["value_rule"] == "inverse of g"), row
        assert row["holds"] or row["max_abs_difference"] > 0.1
    assert {
        (row["norm_kind"], row["gain"], row["holds"])
        for row in rows
        if row["architecture"] == "norm alone"
    } == {
        (kind, gain, gain == "one")
        for kind in ("LayerNorm", "RMSNorm")
        for gain in ("random", "one")
    }
    (carried,) = [row for row in rows if row["test"] == "gains carried around the rotation"]
    assert carried["gain"] == "random"
    assert carried["holds"]
    vectors = [row for row in rows if row["test"] == "gains and biases rotated as vectors"]
    assert len(vectors) == 3
    assert all(row["max_abs_difference"] > 0.1 for row in vectors)


def test_rotations_in_the_skip_connections_give_each_sublayer_its_own():
    rows = list(skip_rows(3))
    assert [row["holds"] for row in rows] == [True, False, True, False]
    assert min(row["max_abs_difference"] for row in rows if not row["holds"]) > 0.1


@pytest.mark.parametrize("name", ["gpt2-untied", "bert", "qwen2"])
def test_checks_pass_on_a_sound_checkpoint_and_their_controls_show(name):
    rows = check_rows(random_checkpoint(small(name), 1), 4)
    assert all(row["verdict"] == "passed" for row in rows), [
        row for row in rows if row["verdict"] != "passed"
    ]
    predicted = [row["predicted_effect"] for row in rows if not row["symmetric"]]
    assert len(predicted) >= 2
    assert min(predicted) > 0.01
    assert (
        sum(row["dimension"] for row in rows)
        == count_row(name, "", small(name), None, None)["corrected"]
    )


def test_a_check_fails_where_the_family_is_none(monkeypatch):
    every = symmetries.symmetries

    def faulty(anatomy):
        broken = next(each for each in every(anatomy) if each.kind == Kind.NULL_LINE)
        return (
            dataclasses.replace(
                broken,
                act=lambda tensors, step: {name: value + 1e-6 for name, value in tensors.items()},
            ),
        )

    monkeypatch.setattr(checks, "symmetries", faulty)
    rows = check_rows(random_checkpoint(small("gpt2"), 1), 4)
    assert rows[0]["verdict"] == "failed"


def test_a_control_that_changes_nothing_says_so():
    """Gains of one without biases, as a fresh initialisation has them, let the claimed rotation
    pass.
    """
    config = small("gpt2-untied")
    checkpoint = with_norms(describe(config), random_checkpoint(config, 1), affine=False)
    (row,) = (
        row
        for row in check_rows(checkpoint, 4)
        if row["symmetry"].startswith("rotation as claimed")
    )
    assert row["predicted_effect"] == 0
    assert row["relative_deviation"] < 1e-10
    assert row["verdict"] == "no power"
    assert scale_distance("relu") < 1e-15
    assert 0.01 < scale_distance("gelu") < 0.1


def test_a_gain_of_zero_is_refused_by_name():
    checkpoint = random_checkpoint(small("gpt2"), 1)
    checkpoint.tensors["transformer.h.0.ln_1.weight"][3] = 0
    with pytest.raises(InputError, match=r"transformer\.h\.0\.ln_1: gain 3 is zero"):
        check_rows(checkpoint, 4)


def test_the_checks_refuse_a_tensor_that_the_class_does_not_have_and_a_model_that_is_not_derived():
    checkpoint = random_checkpoint(small("gpt2"), 1)
    with pytest.raises(InputError, match=r"extra\.weight"):
        check_rows(
            dataclasses.replace(
                checkpoint, tensors={**checkpoint.tensors, "extra.weight": torch.ones(3)}
            ),
            4,
        )
    with pytest.raises(InputError, match="cls_token enters the stream"):
        check_rows(tiny("vit", "ViTModel")[0], 4)


def test_tied_tensors_may_be_stored_under_either_name():
    config = small("gpt2")
    checkpoint = random_checkpoint(config, 1)
    tensors = dict(checkpoint.tensors)
    tensors["lm_head.weight"] = tensors.pop("transformer.wte.weight")
    renamed = Checkpoint(config, tensors, dict.fromkeys(tensors, "F64"), checkpoint.files)
    found = stored(describe(config), renamed.tensors)
    assert found.keys() == checkpoint.tensors.keys()


def test_the_shapes_are_configs_of_their_class():
    for path in [*SMALL, *SHAPES.glob("*.json")]:
        assert describe(parse_config(json.loads(path.read_text()))).architecture
