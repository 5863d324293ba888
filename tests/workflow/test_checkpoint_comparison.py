"""The target checkpoint_comparison: what it plans and refuses, and a tiny pair from end to end."""

from __future__ import annotations

import json

import yaml

from clone import ROOT, SMOKE, Project
from normgauge.schemas.checkpoint_comparison import tables

DRAWN = {"draw_change_map", "draw_head_grid", "draw_null_plots"}
PAIR = "llama-tiny@seed42__llama-tiny@seed43"


def test_every_pair_is_compared_once_and_drawn(project: Project) -> None:
    plan = project.plan("checkpoint_comparison")
    pairs = len(
        yaml.safe_load((ROOT / "config/config.yaml").read_text())["checkpoint_comparison"]["pairs"]
    )
    assert {rule: plan[rule] for rule in DRAWN | {"compare_checkpoints"}} == dict.fromkeys(
        DRAWN | {"compare_checkpoints"}, pairs
    )
    assert plan["tabulate_comparison"] == 1
    assert not plan.keys() & {"capture_moments", "measure_reinitialised"}


def test_the_default_targets_ask_for_it(project: Project) -> None:
    assert project.plan("all").keys() >= DRAWN | {"compare_checkpoints", "tabulate_comparison"}
    assert not project.plan("all_tables").keys() & DRAWN


def test_a_pair_of_one_checkpoint_is_refused(project: Project) -> None:
    pairs = [{"a": "rxnfp-ft", "b": "rxnfp-ft@0.1.0"}]
    line = project.refusal(
        "checkpoint_comparison",
        "--dry-run",
        "--config",
        f"checkpoint_comparison={json.dumps({'pairs': pairs})}",
    )
    assert "checkpoint_comparison.pairs.0" in line
    assert "same checkpoint" in line


def test_an_unknown_model_of_a_pair_is_refused(project: Project) -> None:
    pairs = [{"a": "rxnfp-ft", "b": "rxnfp-fd"}]
    line = project.refusal(
        "checkpoint_comparison",
        "--dry-run",
        "--config",
        f"checkpoint_comparison={json.dumps({'pairs': pairs})}",
    )
    assert "checkpoint_comparison.pairs.0.b" in line


def test_a_tiny_pair_end_to_end(writable: Project) -> None:
    (writable / "pair.yaml").write_text(
        "models: {llama-tiny: {source: {random_init: {config: config/shapes/llama-tiny.json, seed: "
        "[42, 43]}}}}\n"
        "study: {models: [gpt2-smoke, llama-tiny@seed42]}\n"
        "checkpoint_comparison: {pairs: [{a: llama-tiny@seed42, b: llama-tiny@seed43}]}\n"
    )
    writable.run("checkpoint_comparison", *SMOKE, "pair.yaml")
    for kind in ("inventory", "alignment", "kernels", "nulls"):
        assert tables.read(
            writable / f"results/checkpoint_comparison/{PAIR}/{kind}.parquet",
            f"checkpoint_comparison_{kind}",
        )
    assert (
        json.loads((writable / f"results/checkpoint_comparison/{PAIR}/decision.json").read_text())[
            "label"
        ]
        == "abstain"
    )
    (row,) = tables.read(
        writable / "results/tables/pair/checkpoint_comparison.parquet", "checkpoint_comparison"
    )
    assert (row["model_a"], row["revision_b"], row["residual"], row["significant"]) == (
        "llama-tiny",
        "seed43",
        "none",
        0,
    )
    for name in ("map", "heads", "nulls"):
        assert (
            (writable / f"figures/pair/checkpoint_comparison/{PAIR}-{name}.pdf")
            .read_bytes()
            .startswith(b"%PDF")
        )
    assert writable.plan("checkpoint_comparison", *SMOKE, "pair.yaml") == {}
