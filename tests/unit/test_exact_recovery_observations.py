"""The folder that the solver is given: what is wrong with it is said in one line, and repeated rows
count once.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from normgauge.errors import InputError
from normgauge.exact_recovery import second_stage, solve
from normgauge.exact_recovery.arithmetic import arithmetic
from normgauge.exact_recovery.description import (
    Array,
    Description,
    ObservedMap,
    ObservedNorm,
    ObservedTable,
    StoredTensor,
)
from normgauge.exact_recovery.grids import grid
from normgauge.exact_recovery.stragglers import Decision

WIDTH, COLUMNS, ROWS = 6, 5, 200


def write_array(folder, name, values):
    values.astype(np.float64).tofile(folder / f"{name}.f64")
    return Array(name, values.shape[1])


def one_map(folder, inputs, weights, dtype="float32"):
    """Observations of one map without a bias that no norm feeds."""
    folder.mkdir()
    arrays = write_array(folder, "x", inputs), write_array(folder, "y", inputs @ weights)
    tensors = (StoredTensor("w", weights.shape, dtype, None),)
    Description(tensors, (), (ObservedMap("m", "w", None, True, None, *arrays),), (), None).write(
        folder
    )
    return folder


@pytest.fixture
def observed(tmp_path):
    generator = np.random.default_rng(0)
    weights = grid("float32").round(generator.standard_normal((WIDTH, COLUMNS)))
    return one_map(tmp_path / "observations", generator.standard_normal((ROWS, WIDTH)), weights)


def change(folder, edit):
    path = folder / "description.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


NORM = {
    "name": "n",
    "kind": "BatchNorm",
    "eps": 1e-5,
    "gain": "w",
    "bias": None,
    "gain_offset": 0.0,
}
MALFORMED = {
    "not a description": lambda content: content.pop("maps"),
    "norm kind 'BatchNorm'": lambda content: content["norms"].append(
        {**NORM, "inputs": content["maps"][0]["inputs"], "outputs": content["maps"][0]["inputs"]}
    ),
    "name of a file in this folder": lambda content: content["maps"][0]["inputs"].update(
        name="../x"
    ),
    "at least one wide": lambda content: content["maps"][0]["inputs"].update(width=0),
    "tensor v is used but not listed": lambda content: content["maps"][0].update(weight="v"),
    r"shape \[6, 4\], its arrays say \[6, 5\]": lambda content: content["tensors"][0].update(
        shape=[6, 4]
    ),
    "x.f64 has 200 rows, y.f64 has 250": lambda content: (
        content["maps"][0]["outputs"].update(width=4),
        content["tensors"][0].update(shape=[6, 4]),
    ),
    "storage dtype 'int8'": lambda content: content["tensors"][0].update(dtype="int8"),
}


@pytest.mark.parametrize("message", MALFORMED)
def test_a_malformed_description_is_refused(observed, message):
    change(observed, MALFORMED[message])
    with pytest.raises(InputError, match=message):
        solve.solve_folder(observed, arithmetic("torch"))


@pytest.mark.parametrize("name", ["x", "y"])
def test_activations_that_are_not_finite_are_refused(observed, name):
    values = np.fromfile(observed / f"{name}.f64")
    values[7] = np.nan
    values.tofile(observed / f"{name}.f64")
    with pytest.raises(InputError, match=f"{name}.f64: expected finite values"):
        solve.solve_folder(observed, arithmetic("torch"))


@pytest.mark.parametrize("index", [-1, 9, 0.5])
def test_indices_outside_a_table_are_refused(tmp_path, index):
    table = ObservedTable("t", write_array(tmp_path, "t.indices", np.array([[0.0], [index]])))
    with pytest.raises(InputError, match="row numbers of t, 0 to 8"):
        table.read_indices(tmp_path, 9)


@pytest.mark.parametrize(
    "command", ["solve {0} {0}/out", "second_stage {0} {0}", "check_gauge {0}"]
)
def test_junk_at_a_terminal_is_one_line(tmp_path, command):
    module, *arguments = command.format(tmp_path).split()
    environment = {
        "PYTHONPATH": str(Path(solve.__file__).parents[2]),
        "PATH": "/usr/bin:/bin",
        "OMP_NUM_THREADS": "1",
    }
    finished = subprocess.run(
        [sys.executable, "-m", f"normgauge.exact_recovery.{module}", *arguments],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert finished.returncode == 1
    assert finished.stderr.startswith("error: ")
    assert finished.stderr.count("\n") == 1


def test_repeated_rows_are_no_new_evidence(tmp_path):
    generator = np.random.default_rng(1)
    inputs, weights = (
        generator.standard_normal((ROWS, WIDTH)),
        grid("float32").round(generator.standard_normal((WIDTH, COLUMNS)) * 1e-9),
    )
    weights[2] *= 1e9
    once, often = (
        one_map(tmp_path / "once", inputs, weights),
        one_map(tmp_path / "often", np.tile(inputs, (16, 1)), weights),
    )
    margins = [
        solve.solve_folder(folder, arithmetic("torch"))[1].outcomes["w"].margins
        for folder in (once, often)
    ]
    # a product of more rows may round otherwise; four times otherwise
    np.testing.assert_allclose(margins[1], margins[0], rtol=0.5)


def test_fresh_rows_seen_before_are_no_new_evidence(tmp_path):
    generator = np.random.default_rng(1)
    inputs, weights = (
        generator.standard_normal((ROWS, WIDTH)),
        grid("float32").round(generator.standard_normal((WIDTH, COLUMNS))),
    )
    weights[3, 1] = np.float32(3e-11)  # its spacing is far below the noise
    observations, output = (
        one_map(tmp_path / "observations", inputs, weights),
        tmp_path / "solution",
    )
    solve.write(output, *solve.solve_folder(observations, arithmetic("torch")))
    entry = json.loads((output / "report.json").read_text())["stragglers"][0]
    assert (entry["module"], entry["column"], entry["open"]) == ("m", 1, True)
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    inputs = np.vstack(
        [
            generator.standard_normal((100, WIDTH)),
            generator.standard_normal((1, WIDTH)).repeat(50, axis=0),
        ]
    )
    write_array(fresh, "m.inputs", inputs)
    for kind in ("rounded-once", "float64"):
        write_array(fresh, f"m.{kind}", inputs @ weights[:, [1]])
    seen = []
    for _ in range(2):
        report = json.loads((output / "report.json").read_text())
        report["stragglers"] = [
            {**entry, "open": entry["column"] == 1} for entry in report["stragglers"]
        ]
        (output / "report.json").write_text(json.dumps(report))
        second_stage.merge(output, fresh, 1)
        seen.append(json.loads((output / "report.json").read_text())["stragglers"][0]["rows"])
    assert seen == [ROWS + 101, ROWS + 101]
    assert len(load_file(output / "evidence.safetensors")["m.seen"]) == 101


def test_zeros_ask_for_no_fresh_rows_and_hide_no_straggler_of_their_column(tmp_path):
    generator = np.random.default_rng(3)
    inputs, weights = (
        generator.standard_normal((ROWS, WIDTH)),
        grid("float32").round(generator.standard_normal((WIDTH, COLUMNS))),
    )
    weights[[0, 2]] = 0.0
    weights[3, 1] = np.float32(3e-11)
    solution = solve.solve_folder(
        one_map(tmp_path / "observations", inputs, weights), arithmetic("torch")
    )
    solve.write(tmp_path / "solution", *solution)
    outcome = solution[1].outcomes["w"]
    assert (outcome.values[[0, 2]] == 0).all()
    assert (outcome.margins[[0, 2]] == 0).all()
    report = json.loads((tmp_path / "solution/report.json").read_text())
    assert [entry["column"] for entry in report["stragglers"]] == [1]
    assert second_stage.open_columns(report) == {"m": [1]}
    # a zero at the second look; one that fresh rows may decide
    for resolution, expected in ((0.0, False), (1.0, True)):
        decision = Decision(np.zeros(1), np.zeros(1), resolution)
        assert second_stage.record(decision, ROWS, chunks=0)["open"] is expected


def test_a_norm_kind_of_a_description_is_read(tmp_path):
    norm = ObservedNorm("n", "RMSNorm", 1e-6, "g", None, 0.0, Array("a", 3), Array("b", 3))
    write_array(tmp_path, "a", np.ones((4, 3)))
    write_array(tmp_path, "b", np.ones((4, 3)))
    written = Description((StoredTensor("g", (3,), "float32", None),), (norm,), (), (), None)
    written.write(tmp_path)
    assert Description.read(tmp_path) == written
