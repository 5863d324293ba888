"""The target exact_recovery: what it plans, what its solver is given, and a tiny model from end to
end.
"""

from __future__ import annotations

import re

import pytest
import yaml

from clone import ROOT, SMOKE, Project
from normgauge.provenance import import_closure
from normgauge.schemas.exact_recovery import tables

PER_MODEL = {
    "recover_weights",
    "close_stragglers",
    "compare_recovery",
    "assemble_recovery",
}
SECOND_ROUTE = {"recover_weights_again", "compare_routes"}
BLOCK_JOBS = {"observe_part": 3, "solve_part": 3, "join_parts": 1}

DRAWN = {
    "draw_exact_recovery",
    "draw_recovery_calibration",
    "draw_recovery_trend",
    "draw_recovery_gains",
    "draw_recovery_minimum_norm",
    "draw_recovery_calls",
}
ONCE = dict.fromkeys({"tabulate_recovery", "draw_recovery", "draw_recovery_checks", *DRAWN}, 1)
FOLDER = "results/gpt2-smoke/seed42"


def test_every_listed_model_is_observed_solved_closed_compared_and_assembled(
    project: Project,
) -> None:
    plan = project.plan("exact_recovery")
    configuration = yaml.safe_load((ROOT / "config/config.yaml").read_text())["exact_recovery"]
    expected = (
        dict.fromkeys(PER_MODEL, len(configuration["models"]))
        | dict.fromkeys(SECOND_ROUTE, len(configuration["second_route"]))
        | ONCE
    )
    assert {rule: plan.get(rule) for rule in expected} == expected
    assert not plan.keys() & {"capture_moments", "measure_reinitialised", "tabulate_table1"}


def test_the_default_targets_ask_for_its_tables_and_figures(project: Project) -> None:
    tables_plan, figures_plan = project.plan("all_tables"), project.plan("all_figures")
    assert tables_plan.keys() >= PER_MODEL | {"tabulate_recovery", "draw_recovery"}
    assert not tables_plan.keys() & DRAWN
    assert figures_plan.keys() >= PER_MODEL | DRAWN


def test_the_scale_target_recovers_gpt2_in_its_published_shape(project: Project) -> None:
    outputs = project.outputs("exact_recovery_scale")
    assert "results/gpt2-124m/seed42/exact_recovery/assembly.parquet" in outputs
    assert all(
        "/scale/" in path for path in outputs if path.startswith(("figures/", "results/tables/"))
    )
    others = {path.split("/")[1] for path in outputs if path.startswith("results/pythia")}
    assert others == {"pythia-1b-recovery"}
    assert (
        len([path for path in outputs if "pythia-1b-recovery" in path and "/solutions/" in path])
        >= 17
    )


def test_the_published_gpt2_is_pinned_by_its_sha256(project: Project) -> None:
    source = yaml.safe_load((ROOT / "config/paper.yaml").read_text())["models"]["gpt2"]["source"]
    assert source["sha256"] == {
        "model.safetensors": "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707"
    }
    assert any(
        path.startswith("results/gpt2/")
        for path in project.outputs("exact_recovery", "--configfile", "config/paper.yaml")
    )


def test_models_that_are_not_recovered_are_not_solved_again(project: Project) -> None:
    plan = project.plan("exact_recovery", "--config", 'exact_recovery={"models": ["minilm-l6"]}')
    assert plan["recover_weights"] == 1
    assert not plan.keys() & SECOND_ROUTE


@pytest.fixture(scope="module")
def by_jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options by which the smoke model is recovered by jobs; numbers need a file."""
    extra = tmp_path_factory.mktemp("config") / "jobs.yaml"
    extra.write_text("exact_recovery: {block_jobs: {gpt2-smoke: 3}}\n")
    return (*SMOKE, str(extra))


def test_a_model_is_recovered_by_a_job_for_each_part(project: Project, by_jobs) -> None:
    plan = project.plan("exact_recovery", *by_jobs)
    assert {rule: plan.get(rule) for rule in BLOCK_JOBS} == BLOCK_JOBS
    assert "recover_weights" not in plan


def test_the_solvers_job_has_one_input_and_it_is_no_checkpoint(project: Project, by_jobs) -> None:
    said = project.run("exact_recovery", *by_jobs, "--dry-run").stdout
    job = re.search(r"^rule solve_part:\n(?:    .+\n)+", said, re.MULTILINE)
    assert job
    assert f"    input: {FOLDER}/exact_recovery/observations/" in job.group()
    assert "checkpoint" not in job.group()


def test_the_solvers_script_imports_no_reader_of_weights() -> None:
    imported = import_closure(ROOT / "workflow/scripts/solve_part.py")
    assert "solve.py" in {path.name for path in imported}
    assert not [
        path
        for path in imported
        if path.parent.name == "checkpoints"
        or path.stem in ("observe", "hooks", "by_block", "compare")
    ]


def test_an_unknown_model_is_one_line(project: Project) -> None:
    line = project.refusal(
        "exact_recovery", "--dry-run", "--config", 'exact_recovery={"models": ["minilm-l7"]}'
    )
    assert "exact_recovery.models" in line
    assert "minilm-l6" in line


@pytest.fixture(scope="module")
def recovered(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    clone = finished.copy(tmp_path_factory.mktemp("recovery") / "normgauge")
    clone.run("exact_recovery", *SMOKE)
    return clone


def test_a_tiny_model_end_to_end(recovered: Project) -> None:
    rows = tables.read(recovered / f"{FOLDER}/exact_recovery/map.parquet", "recovery_map")
    assert sum(row["values"] for row in rows) > 0
    assert sum(row["misses"] for row in rows) == 0
    assert sum(row["recovered"] + row["flagged"] for row in rows) == sum(
        row["determined"] for row in rows
    )
    assert {row["population"] for row in rows if row["recovered"] == row["values"]} >= {
        "norm",
        "no norm",
        "behind a LayerNorm",
    }
    assert {
        row["survivors"]
        for row in tables.read(
            recovered / f"{FOLDER}/exact_recovery/certificates.parquet", "recovery_certificates"
        )
    } == {1}
    falsified = tables.read(
        recovered / f"{FOLDER}/exact_recovery/falsifier.parquet", "recovery_falsifier"
    )
    assert falsified
    assert sum(row["claimed"] + row["matches"] for row in falsified) == 0
    assert all(row["true_matches"] == row["values"] > 0 for row in falsified)
    assert all(
        row["inside"]
        for row in tables.read(
            recovered / f"{FOLDER}/exact_recovery/attack.parquet", "recovery_attack"
        )
    )
    parts = tables.read(recovered / f"{FOLDER}/exact_recovery/parts.parquet", "recovery_parts")
    assert [row["part"] for row in parts] == ["decoder-1", "decoder-2", "ends"]
    assert all(row["scratch_mb"] > 0 < row["solve_mb"] for row in parts)
    assert not list((recovered / f"{FOLDER}/exact_recovery").glob("tmp*"))
    for kind in (
        "exact_recovery",
        "exact_recovery_map",
        "exact_recovery_parts",
        "exact_recovery_minimum_norm",
        "exact_recovery_calls",
        "exact_recovery_null",
        "exact_recovery_margins",
        "exact_recovery_columns",
    ):
        assert {
            row["model"]
            for row in tables.read(recovered / f"results/tables/smoke/{kind}.parquet", kind)
        } == {"gpt2-smoke"}
    whole = tables.read(
        recovered / "results/tables/smoke/exact_recovery.parquet", "exact_recovery"
    )[-1]
    assert (
        whole["misses"],
        whole["falsifier_matches"],
        whole["route_differences"],
        whole["most_survivors"],
    ) == (0, 0, 0, 1)
    assert whole["control_matches"] == whole["falsifier_values"] > 0
    assert whole["attack_inside"] == whole["attacked"] > 0
    assert whole["minimum_norm_matches"] < 0.2 * whole["minimum_norm_values"]
    assert whole["minimum_norm_distance"] < 1e-13
    routes = tables.read(recovered / f"{FOLDER}/exact_recovery/routes.parquet", "recovery_routes")
    assert {("torch DEFAULT" in row["second_kernels"]) for row in routes} == {True}
    assert all("Nehalem" in row["second_kernels"] for row in routes)
    assert whole["sha256_equal"] is (True if whole["recovered"] == whole["values"] else None)
    for name in (
        "map",
        "checks",
        "recovered-share",
        "null-calibration",
        "margin-against-n",
        "hardest-column",
        "minimum-norm",
        "wrong-roundings",
    ):
        assert (
            (recovered / f"figures/smoke/exact_recovery/{name}.pdf")
            .read_bytes()
            .startswith(b"%PDF")
        )


def test_a_second_run_does_nothing(recovered: Project) -> None:
    assert recovered.plan("exact_recovery", *SMOKE) == {}
