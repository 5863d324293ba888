"""The registry of controls: complete, and each of its entries passes, fails and says when it could
have seen nothing.
"""

from __future__ import annotations

import re

import pytest

from normgauge.render import style
from normgauge.render.controls.drawings import draw_controls
from normgauge.render.controls.reading import Control, Must, Reading, rows_of
from normgauge.render.controls.registry import CONTROLS, NO_CONTROLS, SCHEMAS, shown_columns
from normgauge.render.tabulating import write_table
from normgauge.schemas.controls import tables
from normgauge.schemas.discrete_laws import DRAWN
from normgauge.schemas.signed_permutation import IN_GROUP, NO_SIGNS
from normgauge.schemas.trajectories import MOVED, SCRAMBLED, SIGNED, UNALIGNED
from result_samples import filled
from unit.test_render import assert_legible

SOUNDS_LIKE_ONE = re.compile(
    r"control|falsif|chance|wrong place|permut(ed|ation alone)|shuffl|random direction|predict|not "
    r"moved|uncentred|random place"
)

UNCERTAINTY = re.compile(r"_(se|seed_low|seed_high)$")


def test_every_column_that_shows_a_control_is_registered():
    shown = shown_columns()
    for kind, (_, schema) in SCHEMAS.items():
        for field in schema:
            text = f"{field.name.replace('_', ' ')}: {field.metadata[b'description'].decode()}"
            # the uncertainty of a control belongs to that control
            column = UNCERTAINTY.sub("", field.name)
            if SOUNDS_LIKE_ONE.search(text) and column not in NO_CONTROLS:
                assert column in shown.get(kind, ()), (
                    f"{kind}.{field.name} is in no control of the registry: {text}"
                )
    for kind, columns in shown.items():
        assert columns <= set(SCHEMAS[kind][1].names), kind


def test_no_exemption_outlives_its_column():
    names = {name for _, schema in SCHEMAS.values() for name in schema.names}
    assert NO_CONTROLS.keys() <= names
    assert not any(
        name in columns
        for columns in shown_columns().values()
        for name in NO_CONTROLS
        if name != "log10_null"
    )


CURVATURE = {"architecture": "tiny", "direction": "key bias", "mean_eigenvalue": 1e-2}
LAYER = {
    "norm": "ln_f",
    "cos_beta_gamma_inv": 0.1,
    "forward_floor": 1e-13,
    "accumulator_floor": 1e-14,
    "sigma_max": 10.0,
}
SCHUR = {
    "floor": 1e-13,
    "axis_minimum": 0.5,
    "predicted_quadratic_form": 1e-2,
    "quadratic_form": 1e-2,
}
POST = {"kind": "trained", "random_direction_null": 0.04, "post_norm_null_dimension": 1}
EXACT = {
    "population": "all",
    "falsifier_values": 100,
    "control_matches": 100,
    "falsifier_matches": 0,
    "certificates": 5,
}
EXACT |= {
    "most_survivors": 1,
    "attacked": 9,
    "attack_inside": 9,
    "recovered": 50,
    "route_differences": 0,
}
OUTSIDE = {
    "admissible": False,
    "predicted_effect": 0.5,
    "tolerance": 1e-10,
    "relative_deviation": 0.3,
    "verdict": "passed",
}
INSIDE = {
    "admissible": True,
    "forward_dtype": "float64",
    "tolerance": 1e-10,
    "relative_deviation": 1e-14,
    "verdict": "passed",
}
CARRIED = {
    "predicted_error": 2.0,
    "raw_error": 1.9,
    "permutation_deviation": 0.1,
    "raw_deviation": 0.1,
    "transported_deviation": 1e-14,
}
CARRIED |= {"permutation_control": "passed", "raw_control": "passed", "transported": "passed"}
CARRIED_ON = {
    "detectable": True,
    "permutation_error": 2.0,
    "raw_error": 1.9,
    "signed_kept": 1.0,
    "permutation_kept": 0.1,
    "raw_kept": 0.2,
    "tolerance": 1e-3,
    "transported": "passed",
    "permutation_control": "passed",
    "raw_control": "passed",
}
FALSE = {"symmetric": False, "predicted_effect": 0.5, "relative_deviation": 0.1}
TRUE = {"symmetric": True, "relative_deviation": 1e-14}
RANK = {
    "architecture": "tiny",
    "smallest_nonzero": 1e-5,
    "largest_zero": 1e-16,
    "floor": 1e-13,
    "violation": 1e-9,
}
NULL = {"pair": "a to b", "confirmatory": True, "smallest_p": 1e-3, "null_deviation": 1.0, "p": 0.4}

MATCH = {"part": "residual", "pooled": True, "tokens": 22, "width": 576, "negative": 0.5}
ZOO = {"norm": "LayerNorm", "sample": "channels", "as_predicted": True}
ZOO |= {"containment": 1.0, "other_containment": 0.9}
ADAPTER = {"constraint": "dead direction, constant kept", "change": 1e-15, "floor": 1e-14}
ADAPTER |= {"error": None}
SHIFT = {"optimiser": "SGD", "loss": "cross-entropy", "shift_share": 1e-16, "floor": 1e-14}
RESUMED = {"model": "m", "revision": "1", "optimizer": "adamw", "seed": 42, "resumed": 25}
MERGED = {"kind": SCRAMBLED, "first": "m@1", "second": "m@1", "seed": 42, "floor": 1e-7}
UNPREDICTED = None  # no effect can be predicted of it: it never has power

# by control and table: rows that pass, what a fault changes in the last of them, and what takes its
# power away
PLANTED = {
    ("hook at a norm's output", "fingerprint"): (
        [LAYER | {"sigma_median": 1.0, "relative_gamma_inv": 1e-16}],
        {"relative_gamma_inv": 0.1},
        {"forward_floor": 1e-2},
    ),
    ("hook at the input of linear maps", "schur"): (
        [SCHUR],
        {"quadratic_form": 0.3},
        {"floor": 1e-3},
    ),
    ("uncentred Gram matrix", "schur"): (
        [SCHUR],
        {"quadratic_form": 0.0},
        {"predicted_quadratic_form": 0.0},
    ),
    ("kernel predicted by inspection", "norm_zoo"): (
        [ZOO],
        {"as_predicted": False, "containment": 0.9},
        {"other_containment": 1.0},
    ),
    ("artifact without a dead direction", "constrained_artifacts"): (
        [ADAPTER | {"constraint": "random direction", "change": 0.3}, ADAPTER],
        {"change": 0.1},
        {"floor": 1.0},
    ),
    ("shift common to all classes", "table6"): (
        [SHIFT | {"optimiser": "Adam", "shift_share": 0.3}, SHIFT],
        {"shift_share": 0.1},
        {"floor": 1.0},
    ),
    ("unrelated bottom direction", "table2"): (
        [POST | {"norm_kind": "LayerNorm", "post_norm_cos_gamma_inv": 1.0}],
        {"post_norm_cos_gamma_inv": 0.05},
        {"post_norm_null_dimension": 625},
    ),
    ("kernel behind an RMSNorm", "table2"): (
        [POST | {"norm_kind": "RMSNorm", "post_norm_cos_gamma_inv": 0.02}],
        {"post_norm_cos_gamma_inv": 0.9},
        {"random_direction_null": 0.25},
    ),
    ("permuted rows", "exact_recovery"): (
        [EXACT],
        {"falsifier_matches": 60},
        {"control_matches": 0},
    ),
    ("residuals at wrong places", "exact_recovery_null"): (
        [{"residuals": 10**6, "score": 0.01, "statistic": 1e-4}],
        {"statistic": 0.1},
        {"score": 0.499999},
    ),
    ("other places on the line", "exact_recovery"): (
        [EXACT],
        {"most_survivors": 2},
        {"certificates": 0},
    ),
    ("stored shift inside the window", "exact_recovery"): (
        [EXACT],
        {"attack_inside": 8},
        {"attacked": 0},
    ),
    ("two arithmetic routes", "exact_recovery"): (
        [EXACT],
        {"route_differences": 1},
        {"recovered": 0},
    ),
    ("changes outside the group", "group_boundary"): (
        [OUTSIDE],
        {"verdict": "failed"},
        {"predicted_effect": 0.0},
    ),
    ("elements of the group", "group_boundary"): (
        [OUTSIDE, INSIDE],
        {"relative_deviation": 1e-3},
        {"model": "without controls"},
    ),
    ("artifacts moved by the permutation alone", "carried_artifacts"): (
        [CARRIED],
        {"permutation_control": "failed"},
        {"predicted_error": 0.0},
    ),
    ("artifacts not moved", "carried_artifacts"): (
        [CARRIED],
        {"raw_control": "failed"},
        {"raw_error": 0.0},
    ),
    ("artifacts moved by the gauge", "carried_artifacts"): (
        [CARRIED],
        {"transported": "failed"},
        {"predicted_error": 0.0, "raw_error": 0.0},
    ),
    ("streams matched, no signs", "recovered_gauges"): (
        [
            MATCH | {"match": IN_GROUP, "permutation_accuracy": 0.99},
            MATCH | {"match": NO_SIGNS, "permutation_accuracy": 0.5},
        ],
        {"permutation_accuracy": 0.99},
        {"negative": 0.0},
    ),
    ("streams matched, free signs", "recovered_gauges"): UNPREDICTED,
    ("streams matched, greedy", "recovered_gauges"): UNPREDICTED,
    ("names of coordinates after a gauge", "name_audit"): (
        [{"chance": 0.035, "raw_overlap": 0.05, "top": 20, "width": 576}],
        {"raw_overlap": 1.0},
        {"chance": 1.0, "top": 12, "width": 12},
    ),
    ("learned artifacts moved by the permutation alone", "learned_artifacts"): (
        [CARRIED_ON],
        {"permutation_control": "failed"},
        {"permutation_error": 0.0},
    ),
    ("learned artifacts not moved", "learned_artifacts"): (
        [CARRIED_ON],
        {"raw_control": "failed"},
        {"detectable": False},
    ),
    ("learned artifacts moved by the recovered gauge", "learned_artifacts"): (
        [CARRIED_ON],
        {"transported": "failed"},
        {"permutation_error": 0.0, "raw_error": 0.0},
    ),
    ("names after a gauge, by recovered gauges", "learned_audits"): (
        [{"chance": 0.035, "raw_overlap": 0.05, "top": 20, "width": 576}],
        {"raw_overlap": 1.0},
        {"chance": 1.0, "top": 12, "width": 12},
    ),
    ("training resumed with the state moved along", "resumed_training"): (
        [
            RESUMED | {"state": "not moved", "relative_error": 0.01},
            RESUMED | {"state": MOVED, "relative_error": 1e-13},
        ],
        {"relative_error": 1e-3},
        {"seed": 43},
    ),
    ("a model merged with itself in other coordinates", "merge_barriers"): (
        [
            MERGED | {"way": UNALIGNED, "barrier": 0.8},
            MERGED | {"way": SIGNED, "barrier": 1e-7},
        ],
        {"barrier": 0.5},
        {"floor": 0.1},
    ),
    ("a rotation drawn at random", "scaffold"): (
        [
            {"first": "m@a", "certain": 0.9, "width": 128},
            {"first": DRAWN, "certain": 0.0, "width": 128},
        ],
        {"certain": 0.5},
        {"width": 4},
    ),
    ("tensors moved by the permutation alone", "transport_rules"): (
        [{"owner": "m", "rule": "|F|^T X G", "without_signs": 2.0}],
        {"without_signs": 0.0},
        None,
    ),
    ("chains of runs that the rule of trust has not seen", "transport_trust"): (
        [{"judged": "other runs", "error": 0.02, "error_of_mean": 0.4}],
        {"error": 0.4},
        {"error_of_mean": 0.0},
    ),
    ("changes that look like symmetries", "redundancy_checks"): (
        [FALSE],
        {"relative_deviation": 1e-14},
        {"predicted_effect": 0.0},
    ),
    ("symmetries at random places", "redundancy_checks"): (
        [FALSE, TRUE],
        {"relative_deviation": 1e-3},
        {"model": "without controls"},
    ),
    ("claimed rotation where it does not commute", "redundancy_falsifier"): (
        [{"predicted_effect": 0.5, "relative_difference": 0.3}],
        {"relative_difference": 0.0},
        {"predicted_effect": 1e-15},
    ),
    ("claimed rotation where it commutes", "redundancy_falsifier"): (
        [
            {"architecture": "b", "predicted_effect": 0.5},
            {"architecture": "a", "max_abs_difference": 1e-15},
        ],
        {"max_abs_difference": 0.1},
        None,
    ),
    ("Hessian along the symmetries", "redundancy_hessian"): (
        [CURVATURE | {"symmetric": True, "orbit": 1e-9}],
        {"orbit": 1e-3},
        {"mean_eigenvalue": 1e-9},
    ),
    ("Hessian off the symmetries", "redundancy_hessian"): (
        [CURVATURE | {"symmetric": False, "curvature": 5e-3}],
        {"curvature": 1e-9},
        {"mean_eigenvalue": 1e-9},
    ),
    ("rank of the Jacobian", "redundancy_jacobian"): (
        [RANK],
        {"largest_zero": 1e-6},
        {"smallest_nonzero": 1e-12},
    ),
    ("tangents of the symmetries", "redundancy_jacobian"): (
        [RANK],
        {"violation": 1e-4},
        {"smallest_nonzero": 1e-7},
    ),
    ("draws under the nulls", "checkpoint_comparison_nulls"): ([NULL], None, {"smallest_p": 0.2}),
}


def judged(control: Control, rows) -> str:
    """The verdict on the model of the last row."""
    schema = SCHEMAS[control.table][1]
    owner = (
        {}
        if "model" in schema.names or control.table == "checkpoint_comparison_nulls"
        else {"model": "m", "revision": "1"}
    )
    complete = []
    for row in rows:
        known = {key: value for key, value in row.items() if key in schema.names}
        complete.append(owner | filled(schema, **known) | row)
    return rows_of(control, complete)[-1]["verdict"]


@pytest.mark.parametrize(
    "control", CONTROLS, ids=lambda control: f"{control.name}, {control.table}"
)
def test_each_control_passes_fails_and_says_when_it_has_no_power(control):
    if (
        planted := PLANTED[control.name, control.table.removeprefix("reinitialised_")]
    ) is UNPREDICTED:
        label = f"control: {control.name.removeprefix('streams matched, ')}"
        rows = [MATCH | {"match": each, "permutation_accuracy": 0.9} for each in (IN_GROUP, label)]
        assert judged(control, rows) == "no power"
        return
    sound, fault, powerless = planted
    assert judged(control, sound) == "passed"
    if fault is not None:
        assert judged(control, [*sound[:-1], sound[-1] | fault]) == "failed"
    if powerless is not None:
        assert judged(control, [*sound[:-1], sound[-1] | powerless]) == "no power"


def test_nothing_measured_and_nothing_to_see_is_no_power():
    def control(*readings):
        return Control("s", "c", "t", (), "", Must.NOT_SHOW, "", lambda _: readings, {})

    for reading in (
        Reading("m", None, 1e-10, 0.0),
        Reading("m", 1.0, 1e-10, None),
        Reading("m", float("nan"), 0.0, 0.0),
    ):
        assert rows_of(control(reading), ())[0]["verdict"] == "no power"
    (row,) = rows_of(control(Reading("m", 0.0, 1e-10, 0.0), Reading("m", 1.0, 1e-10, 1e-12)), ())
    assert (row["verdict"], row["readings"], row["without_power"], row["expected"]) == (
        "passed",
        2,
        1,
        1.0,
    )
    (row,) = rows_of(control(Reading("m", 1.0, 1e-10, float("nan"))), ())
    assert row["verdict"] == "failed"


def test_the_table_is_written_from_tables_and_drawn(tmp_path):
    studied, schema = SCHEMAS["redundancy_jacobian"]
    rows = [
        filled(schema, **RANK),
        filled(schema, **RANK | {"architecture": "flat", "smallest_nonzero": 1e-12}),
    ]
    studied.write(tmp_path / "jacobian.parquet", "redundancy_jacobian", rows, {})
    compared, schema = SCHEMAS["checkpoint_comparison_nulls"]
    null = {key: value for key, value in NULL.items() if key != "pair"}
    sides = {"model_a": "a", "revision_a": "1", "model_b": "b", "revision_b": "2"}
    compared.write(
        tmp_path / "nulls.parquet",
        "checkpoint_comparison_nulls",
        [filled(schema, statistic="ov_copy", null="signs", **null)],
        sides,
    )
    inputs = {
        "redundancy_jacobian": [tmp_path / "jacobian.parquet"],
        "checkpoint_comparison_nulls": [tmp_path / "nulls.parquet"],
        "table2": [],
    }
    write_table("controls", inputs, tmp_path / "controls.parquet", tmp_path / "controls.csv")
    found = tables.read(tmp_path / "controls.parquet", "controls")
    assert [(row["control"], row["model"], row["verdict"]) for row in found] == [
        ("rank of the Jacobian", "tiny", "passed"),
        ("rank of the Jacobian", "flat", "no power"),
        ("tangents of the symmetries", "tiny", "passed"),
        ("tangents of the symmetries", "flat", "no power"),
        ("draws under the nulls", "a@1 to b@2: ov_copy, signs", "passed"),
    ]
    with style.look():
        assert_legible(draw_controls(found))
