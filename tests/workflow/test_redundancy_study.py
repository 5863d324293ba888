"""The target redundancy: what it plans, and tiny models from end to end."""

from __future__ import annotations

from pathlib import Path

import yaml

from clone import ROOT, SMOKE, Project
from normgauge.schemas.redundancy import tables

ONCE = {
    "measure_small_models",
    "count_redundancy",
    *(f"draw_redundancy_{name}" for name in ("counts", "symmetries", "falsifier", "checks")),
}


def test_every_listed_checkpoint_is_checked_and_nothing_is_captured(project: Project) -> None:
    plan = project.plan("redundancy")
    models = len(yaml.safe_load((ROOT / "config/config.yaml").read_text())["redundancy"]["models"])
    assert plan["check_symmetries"] == plan["acquire_checkpoint"] == models
    assert {rule: plan.get(rule) for rule in ONCE} == dict.fromkeys(ONCE, 1)
    assert not plan.keys() & {"capture_moments", "prepare_calibration", "solve_weights"}


def test_the_default_targets_ask_for_it(project: Project) -> None:
    assert project.plan("all").keys() >= ONCE | {"check_symmetries"}


def test_an_unknown_model_or_key_is_one_line(project: Project) -> None:
    line = project.refusal(
        "redundancy", "--dry-run", "--config", 'redundancy={"models": ["minilm-l7"]}'
    )
    assert "redundancy.models" in line
    assert "minilm-l6" in line
    assert "redundancy" in project.refusal(
        "redundancy", "--dry-run", "--config", 'redundancy={"depth": 3}'
    )


def test_tiny_models_agree_everywhere(finished: Project, tmp_path: Path) -> None:
    clone = finished.copy(tmp_path / "normgauge")
    clone.run("redundancy", *SMOKE)
    folder = clone / "results/redundancy/smoke"
    counts = {
        row["architecture"]: row
        for row in tables.read(folder / "counts.parquet", "redundancy_counts")
    }
    measured = [row for row in counts.values() if row["source"] == "small model"]
    assert len(measured) == 2
    assert all(row["agrees"] and row["jacobian_nullity"] == row["corrected"] for row in measured)
    checked = tables.read(folder / "checks.parquet", "redundancy_checks")
    assert {row["model"] for row in checked} == {"gpt2-smoke"}
    assert all(row["verdict"] == "passed" for row in checked)
    assert sum(row["dimension"] for row in checked) == counts["gpt2-smoke"]["corrected"]
    assert len((folder / "counts.csv").read_text().splitlines()) == 1 + len(counts)
    for name in ("counts", "symmetries", "jacobian", "falsifier", "checks"):
        assert (clone / f"figures/smoke/redundancy/{name}.pdf").read_bytes().startswith(b"%PDF")
