"""Runs of training: continued to the byte, true to their recorded gauge, and named by the table."""

import hashlib
import json
import multiprocessing
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import normgauge.training.kept as kept_module
from normgauge.anatomy import describe
from normgauge.calibration.prepare import prepare
from normgauge.calibration.settings import Settings
from normgauge.checkpoints.fine_tuned import FineTunedSource, parse_fine_tuned
from normgauge.checkpoints.model_table import expand, validate_models
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.errors import InputError
from normgauge.gauge.model_gauge import read_gauge
from normgauge.gauge.transform import transform
from normgauge.schemas.inputs import tables
from normgauge.training.optimise import Training
from normgauge.training.plan import Plan, plan_of, rate_share
from normgauge.training.train import train
from normgauge.trajectories.links import chain_of, read_links, right
from normgauge.trajectories.runs import Start, make_runs, trainable, with_drawn_anew
from normgauge.transport.optimizers import moved_state, read_state

SETTINGS = {"learning_rate": 3e-3, "batch": 2, "length": 32, "warmup": 2}


def source(**keys):
    settings = SETTINGS | keys.pop("settings", {})
    given = {"steps": 8, "keep": (0, 4, 8), "gauge": 7, "match_every": (2, 4)} | keys
    return FineTunedSource("base@seed42", None, ("kjv",), (42,), settings=settings, **given)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A tiny base with its calibration, and a text to train on."""
    folder = tmp_path_factory.mktemp("base")
    generator = np.random.default_rng(0)
    words = ["".join(generator.choice(list("abcdefghijklmnop"), 5)) for _ in range(300)]
    text = " ".join(generator.choice(words, 9000))
    row = {"document": 0, "name": "0", "text": text, "payload": None}
    row["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    metadata = {"corpus": "kjv", "corpus_sha256": "0" * 64, "separator": "\n"}
    tables.write(folder / "kjv.parquet", "corpus", [row], metadata)
    train("llama-smoke", 42, folder / "kjv.parquet", folder / "base", threads=1)
    prepare(
        {"modality": "text", "calibration": "kjv"},
        folder / "base",
        folder / "kjv.parquet",
        folder / "calibration.parquet",
        config=open_checkpoint(folder / "base").config,
        settings=Settings(8, 32),
    )
    corpora = {"kjv": folder / "kjv.parquet"}
    probes = folder / "calibration.parquet"
    return Start(corpora, folder / "base", None, probes, 4, 32, (39, 100))


@pytest.fixture(scope="module")
def made(start, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    make_runs(source(), start, folder / "runs", folder / "unfinished", 1)
    return folder / "runs" / "run"


def digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Killed(BaseException):
    """What no handler of errors stops."""


@pytest.mark.parametrize("place", ["step 6", "keeping 4"])
def test_a_run_that_was_killed_continues_to_the_same_bytes(
    place, start, made, tmp_path, monkeypatch
):
    """Weights, optimizer state, links, and every record."""
    what, number = place.split()
    module, name = (Training, "advance") if what == "step" else (kept_module, "save_model")
    whole = getattr(module, name)

    def killing(*arguments):
        training = arguments[0]
        if what == "step" and training.step == int(number):
            raise Killed
        if what == "keeping" and arguments[2].name.startswith(f".step{number}."):
            raise Killed
        return whole(*arguments)

    monkeypatch.setattr(module, name, killing)
    with pytest.raises(Killed):
        make_runs(source(), start, tmp_path / "runs", tmp_path / "unfinished", 1)
    assert not (tmp_path / "runs").exists()
    taken = []
    monkeypatch.setattr(module, name, whole)
    advance = Training.advance
    monkeypatch.setattr(
        Training, "advance", lambda self: (taken.append(self.step), advance(self))[1]
    )
    make_runs(source(), start, tmp_path / "runs", tmp_path / "unfinished", 1)
    assert digests(tmp_path / "runs" / "run") == digests(made)
    first = {"step 6": 4, "keeping 4": 0}[place]
    assert taken == list(range(first, 8))
    assert not (tmp_path / "unfinished").exists()


def run_until_killed(start, folder):
    """In a process of its own: training that dies by a signal at step 7."""
    advance = Training.advance

    def killing(self):
        advance(self)
        if self.step == 7:
            os.kill(os.getpid(), signal.SIGKILL)

    Training.advance = killing
    make_runs(source(), start, folder / "runs", folder / "unfinished", 1)


def test_a_process_that_was_killed_leaves_what_the_next_continues(start, made, tmp_path):
    # spawned: a forked child may wait forever for the threads that its parent had
    process = multiprocessing.get_context("spawn").Process(
        target=run_until_killed, args=(start, tmp_path)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "unfinished" / "run" / "step4").is_dir()
    make_runs(source(), start, tmp_path / "runs", tmp_path / "unfinished", 1)
    assert digests(tmp_path / "runs" / "run") == digests(made)


def test_what_was_begun_otherwise_is_not_continued(start, made, tmp_path):
    shutil.copytree(made, tmp_path / "unfinished" / "run")
    (tmp_path / "unfinished" / "begun.json").write_text("{}")
    (tmp_path / "unfinished" / "run" / "step4" / "model.safetensors").write_bytes(b"of another")
    make_runs(source(), start, tmp_path / "runs", tmp_path / "unfinished", 1)
    assert digests(tmp_path / "runs" / "run") == digests(made)


def test_training_commutes_with_the_recorded_gauge(start, made, tmp_path):
    """The run from the gauged base is the gauged run, weights and optimizer state, up to rounding;
    by the permutation alone it is not.
    """
    make_runs(source(gauge=None), start, tmp_path / "runs", tmp_path / "unfinished", 1)
    plain, gauge = tmp_path / "runs" / "run" / "step8", read_gauge(made / "gauge.parquet")
    anatomy = describe(open_checkpoint(plain).config)
    tensors, found = (
        load_file(plain / "model.safetensors"),
        load_file(made / "step8/model.safetensors"),
    )
    for name, value in transform(anatomy, tensors, gauge):
        assert torch.allclose(value, found[name], rtol=1e-3, atol=2e-5), name
    wrong = dict(transform(anatomy, tensors, gauge.without_signs()))
    assert any(not torch.allclose(wrong[name], found[name], atol=1e-2) for name in found)
    states = [read_state(folder / "optimizer.pt") for folder in (plain, made / "step8")]
    moved = moved_state(states[0], anatomy, gauge)["state"]
    for number, entry in states[1]["state"].items():
        for key, value in entry.items():
            assert torch.allclose(moved[number][key], value, rtol=2e-2, atol=1e-5), (number, key)


def test_links_lead_from_the_base_to_the_end(made):
    links, gauge = read_links(made / "links.parquet"), read_gauge(made / "gauge.parquet")
    assert {link.stride for link in links} == {0, 2, 4}
    scopes = {link.scope for link in links}
    assert len(scopes) == 4  # the stream by all sites and by the last, and two blocks' units
    for scope in scopes:
        first = next(link for link in links if link.scope == scope and link.stride == 0)
        assert right(first.gauge, gauge.elements[scope.space])[first.certain].all()
        for stride in (2, 4):
            found = chain_of(links, scope, 100, stride)
            assert len(found) == 1 + 8 // stride
    stream = chain_of(links, next(s for s in scopes if s.space == "residual"), 100, 2)
    assert right(stream.gauge, gauge.elements["residual"]).mean() > 0.9


def test_kept_steps_are_folders_with_weights_state_and_record(made):
    assert json.loads((made / "step4" / "training.json").read_text())["step"] == 4
    state = read_state(made / "step4" / "optimizer.pt")
    names = [name for group in state["param_groups"] for name in group["param_names"]]
    assert set(names) == set(load_file(made / "step4" / "model.safetensors"))
    assert not read_state(made / "step0" / "optimizer.pt")["state"]


def test_parameters_are_drawn_anew_as_the_plan_says(start):
    checkpoint = open_checkpoint(start.base)
    found = with_drawn_anew(checkpoint, Plan(1, 1e-2, 42, drawn_anew=("*.mlp.*",)))
    moved = {n for n, each in found.tensors.items() if not each.equal(checkpoint.tensors[n])}
    assert moved == {name for name in checkpoint.tensors if ".mlp." in name and "weight" in name}
    with pytest.raises(InputError, match="names no parameter of the base"):
        with_drawn_anew(checkpoint, Plan(1, 1e-2, 0, drawn_anew=("*.mpl.*",)))


def test_parameters_and_optimizers_are_what_the_plan_says(start):
    checkpoint = open_checkpoint(start.base)
    stream = torch.randint(512, (500,), generator=torch.Generator().manual_seed(0))
    for optimizer in ("adamw", "sgd"):
        plan = Plan(2, 1e-2, 0, batch=1, length=16, optimizer=optimizer, parameters=("*.mlp.*",))
        run = Training(trainable(checkpoint), plan, stream)
        for _ in range(2):
            run.advance()
        changed = {
            name
            for name, value in run.model.state_dict().items()
            if not torch.equal(value, checkpoint.tensors[name])
        }
        assert changed == {name for name in checkpoint.tensors if ".mlp." in name}
        buffers = {key for entry in run.state()["state"].values() for key in entry}
        assert buffers == (
            {"step", "exp_avg", "exp_avg_sq"} if optimizer == "adamw" else {"momentum_buffer"}
        )
    with pytest.raises(InputError, match="no parameter of the model has such a name"):
        Training(trainable(checkpoint), Plan(1, 1e-2, 0, parameters=("no*",)), stream)
    with pytest.raises(InputError, match="500 tokens of text"):
        Training(trainable(checkpoint), Plan(1, 1e-2, 0, length=501), stream)


def test_schedules_start_at_one_and_end_where_they_say():
    assert [rate_share("constant", step, 0, 10) for step in (0, 10)] == [1, 1]
    assert [rate_share("linear", step, 0, 10) for step in (0, 5, 10)] == pytest.approx(
        [1, 0.55, 0.1]
    )
    assert rate_share("linear", 0, 4, 10) == 0.25


def entry(**keys):
    return {
        "fine_tuned": {"from": "m@seed1", "corpus": "kjv", "seed": 1, "steps": 4, **SETTINGS} | keys
    }


def test_an_entry_names_runs_and_revisions():
    one = parse_fine_tuned("x", entry(keep=[0, 2]))
    assert one.revisions == ("step0", "step2", "step4")
    assert one.record("step2")["fine_tuned"] == {
        "from": "m@seed1",
        "corpus": "kjv",
        "seed": 1,
        "step": 2,
        "steps": 4,
        **SETTINGS,
    }
    several = parse_fine_tuned("x", entry(corpus=["kjv", "python-docs"], seed=[1, 2], gauge=5))
    assert several.revisions[0] == "kjv-seed1-step4"
    assert [several.gauge_seed(run) for run in several.runs] == [5, 6, 7, 8]
    assert several.record("python-docs-seed2-step4")["fine_tuned"]["gauge"] == 8


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"corpus": "smiles"}, "'smiles' is no text to train on"),
        ({"from": "m"}, "expected `model@revision`"),
        ({"recipe": "llama-smoke"}, "expected either `from`"),
        ({"keep": [9]}, "9 is beyond the 4 steps"),
        ({"match_every": 3}, "3 does not divide the 4 steps"),
        ({"steps": 0}, "expected a whole number from 1 up"),
        ({"rate": 1}, "fine_tuned.rate: unknown key"),
        ({"gauge": -1}, "expected a whole number from 0 up"),
    ],
)
def test_mistakes_in_an_entry_are_named(keys, message):
    with pytest.raises(InputError, match=message):
        parse_fine_tuned("models.x.source", entry(**keys))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": "3e-4"}, "YAML reads 3.0e-4"),
        ({"learning_rate": 0}, "expected a number above 0"),
        ({"schedule": "steep"}, "'steep' is unknown; known: constant, linear, cosine"),
        ({"momentum": 1.0}, "expected less than 1"),
        ({"length": 1}, "has nothing to learn"),
        ({"weight_decay": float("nan")}, "expected a number from 0"),
    ],
)
def test_mistakes_in_a_plan_are_named(settings, message):
    with pytest.raises(InputError, match=message):
        plan_of("fine_tuned", SETTINGS | settings, 4, 1)


def test_a_base_must_be_in_the_table_and_come_before():
    model = {"modality": "text", "calibration": "kjv"}
    trained = {"trained": {"recipe": "llama-smoke", "seed": 1}}
    models = {"m": model | {"source": trained}, "x": model | {"source": entry()}}
    validate_models(models)
    assert ("x", "step4") in expand(models)
    for base, message in (
        ("n@seed1", "no model n"),
        ("m@seed2", "no revision seed2; it has seed1"),
        ("x@step4", "x from x has no beginning"),
    ):
        with pytest.raises(InputError, match=message):
            validate_models(models | {"x": model | {"source": entry(**{"from": base})}})
