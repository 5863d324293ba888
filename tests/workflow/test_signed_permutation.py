"""The targets signed_permutation and audit: what they plan, and tiny models from end to end."""

from __future__ import annotations

import json

import pytest
import yaml

from clone import ROOT, SMOKE, Project
from normgauge.schemas.signed_permutation import tables

PER_MODEL = ("measure_equivalence", "recover_gauges", "audit_names")
TABLES = (
    "group_boundary",
    "recovered_gauges",
    "probe_budget",
    "alignment_stability",
    "alignment_cycles",
    "name_audit",
    "carried_artifacts",
)
DRAWN = (*TABLES, "group_boundary_figure")
STUDY = """
signed_permutation:
  models: [llama-tiny]
  recovered: [llama-tiny]
  audited: [llama-tiny]
  learned: {models: [], audited: []}
  aligned: [[llama-tiny, llama-tiny@seed43, llama-tiny@seed44]]
  length: 24
  seeds: {equivalence: [42], recovery: [42], audit: [42], transport: [42]}
  budgets: {recovery: [200], alignment: [50, 100]}
  top: 4
models:
  llama-tiny:
    source: {random_init: {config: config/shapes/llama-tiny.json, seed: [42, 43, 44]}}
"""


def test_every_listed_model_is_measured_and_drawn(project: Project) -> None:
    plan = project.plan("signed_permutation")
    study = yaml.safe_load((ROOT / "config/config.yaml").read_text())["signed_permutation"]
    assert [plan[rule] for rule in PER_MODEL] == [
        len(study[key]) for key in ("models", "recovered", "audited")
    ]
    assert plan["align_checkpoints"] == len(study["aligned"])
    assert plan["tabulate_gauges"] == plan["draw_gauges"] == 1
    assert not plan.keys() & {"capture_moments", "measure_reinitialised", "tabulate_table1"}


def test_the_default_target_asks_for_it_and_the_audit_draws_pages_alone(project: Project) -> None:
    assert {"tabulate_gauges", "draw_gauges"} <= project.plan("all").keys()
    pages = project.plan("audit")
    assert {rule for rule in pages if rule.startswith(("draw_", "tabulate_"))} == {"draw_audit"}


def test_scale_draws_its_own_tables(project: Project) -> None:
    scale = yaml.safe_load((ROOT / "config/signed_permutation_scale.yaml").read_text())[
        "signed_permutation"
    ]
    outputs = project.outputs("signed_permutation_scale")
    made = [path for path in outputs if path.startswith(("figures/", "results/tables/"))]
    assert made
    assert all("/scale/" in path for path in made)
    found = [
        sum(path.endswith(f"/signed_permutation/{kind}.parquet") for path in outputs)
        for kind in ("equivalence", "recovery", "audit")
    ]
    assert found == [len(scale[key]) for key in ("models", "recovered", "audited")]


@pytest.mark.parametrize("key", ["models", "aligned"])
def test_an_unknown_model_is_one_line(project: Project, key: str) -> None:
    value = [["minilm-l7", "minilm-l6"]] if key == "aligned" else ["minilm-l7"]
    line = project.refusal(
        "signed_permutation",
        "--dry-run",
        "--config",
        f"signed_permutation={json.dumps({key: value})}",
    )
    assert f"signed_permutation.{key}" in line
    assert "minilm-l6" in line


def test_two_lists_of_one_checkpoint_are_one_line(project: Project) -> None:
    aligned = [["rxnfp-pretrained", "rxnfp-ft"], ["rxnfp-pretrained", "rxnfp-ft-10k"]]
    line = project.refusal(
        "signed_permutation",
        "--dry-run",
        "--config",
        f"signed_permutation={json.dumps({'aligned': aligned})}",
    )
    assert "signed_permutation.aligned: two lists begin with the same checkpoint" in line


@pytest.fixture(scope="module")
def studied(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    clone = finished.copy(tmp_path_factory.mktemp("gauge") / "normgauge")
    (clone / "study.yaml").write_text(STUDY)
    clone.run("signed_permutation", "audit", *SMOKE, "study.yaml")
    return clone


def test_a_tiny_model_end_to_end(studied: Project) -> None:
    folder = studied / "results/llama-tiny/seed42/signed_permutation"
    equivalence = tables.read(folder / "equivalence.parquet", "equivalence")
    assert {row["verdict"] for row in equivalence} == {"passed"}
    assert {row["parameters"] for row in equivalence} == {"constants drawn"}
    recovery = tables.read(folder / "recovery.parquet", "gauge_recovery")
    assert {row["permutation_accuracy"] for row in recovery if row["match"] == "in the group"} == {
        1.0
    }
    assert all(
        row["mapped_overlap"] == 1 for row in tables.read(folder / "audit.parquet", "gauge_audit")
    )
    carried = tables.read(folder / "transport.parquet", "gauge_transport")
    assert {
        row[key] for row in carried for key in ("transported", "permutation_control", "raw_control")
    } == {"passed"}
    assert {
        row["other"] for row in tables.read(folder / "alignment.parquet", "gauge_alignment")
    } == {
        "llama-tiny@seed43",
        "llama-tiny@seed44",
    }
    for name in DRAWN:
        assert (
            (studied / f"figures/study/signed_permutation/{name}.pdf")
            .read_bytes()
            .startswith(b"%PDF")
        )
    for table in TABLES:
        assert tables.read(studied / f"results/tables/study/{table}.parquet", table)
    assert (
        (studied / "figures/study/signed_permutation/audit/llama-tiny-seed42.pdf")
        .read_bytes()
        .startswith(b"%PDF")
    )


def test_a_second_run_does_nothing(studied: Project) -> None:
    assert studied.plan("signed_permutation", "audit", *SMOKE, "study.yaml") == {}
