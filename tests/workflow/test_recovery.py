"""The target exact_recovery: what it plans, what its solver is given, and a tiny model from end to end."""

from __future__ import annotations

import re

import pytest
import yaml

from clone import ROOT, SMOKE, Project
from normgauge.provenance import import_closure
from normgauge.schemas.recovery import tables

PER_MODEL = {"observe_activations", "solve_weights", "close_stragglers", "compare_recovery"}
ONCE = {"tabulate_recovery": 1, "draw_recovery": 1, "draw_recovery_calibration": 1}
FOLDER = "results/gpt2-smoke/seed42"


def test_every_listed_model_is_observed_solved_closed_and_compared(project: Project) -> None:
    plan = project.plan("exact_recovery")
    models = len(yaml.safe_load((ROOT / "config/config.yaml").read_text())["recovery"]["models"])
    expected = dict.fromkeys(PER_MODEL, models) | ONCE
    assert {rule: plan.get(rule) for rule in expected} == expected
    assert not plan.keys() & {"capture_moments", "measure_reinitialised", "tabulate_table1"}


def test_the_default_targets_do_not_ask_for_it(project: Project) -> None:
    assert not project.plan("all").keys() & (PER_MODEL | ONCE.keys())


def test_the_solvers_job_has_one_input_and_it_is_no_checkpoint(project: Project) -> None:
    said = project.run("exact_recovery", *SMOKE, "--dry-run").stdout
    job = re.search(r"^rule solve_weights:\n(?:    .+\n)+", said, re.MULTILINE)
    assert job
    assert f"    input: {FOLDER}/recovery/observations\n" in job.group()
    assert "checkpoint" not in job.group()


def test_the_solvers_script_imports_no_reader_of_weights() -> None:
    imported = import_closure(ROOT / "workflow/scripts/solve_weights.py")
    assert "solve.py" in {path.name for path in imported}
    assert not [path for path in imported if path.parent.name == "checkpoints" or path.stem in ("observe", "recover", "compare")]


def test_an_unknown_model_is_one_line(project: Project) -> None:
    line = project.refusal("exact_recovery", "--dry-run", "--config", 'recovery={"models": ["minilm-l7"]}')
    assert "recovery.models" in line
    assert "minilm-l6" in line


@pytest.fixture(scope="module")
def recovered(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    clone = finished.copy(tmp_path_factory.mktemp("recovery") / "normgauge")
    clone.run("exact_recovery", *SMOKE)
    return clone


def test_a_tiny_model_end_to_end(recovered: Project) -> None:
    rows = tables.read(recovered / f"{FOLDER}/recovery/map.parquet", "recovery_map")
    assert sum(row["values"] for row in rows) > 0
    assert sum(row["misses"] for row in rows) == 0
    assert sum(row["recovered"] + row["flagged"] for row in rows) == sum(row["determined"] for row in rows)
    assert {row["population"] for row in rows if row["recovered"] == row["values"]} >= {"norm", "no norm", "behind a LayerNorm"}
    assert {row["survivors"] for row in tables.read(recovered / f"{FOLDER}/recovery/certificates.parquet", "recovery_certificates")} == {1}
    falsified = tables.read(recovered / f"{FOLDER}/recovery/falsifier.parquet", "recovery_falsifier")
    assert falsified
    assert sum(row["claimed"] + row["matches"] for row in falsified) == 0
    assert not (recovered / f"{FOLDER}/recovery/observations").exists()
    for kind in ("recovery", "recovery_calibration"):
        assert {row["model"] for row in tables.read(recovered / f"results/tables/smoke/{kind}.parquet", kind)} == {"gpt2-smoke"}
    for name in ("map", "null-calibration"):
        assert (recovered / f"figures/smoke/exact-recovery/{name}.pdf").read_bytes().startswith(b"%PDF")


def test_a_second_run_does_nothing(recovered: Project) -> None:
    assert recovered.plan("exact_recovery", *SMOKE) == {}
