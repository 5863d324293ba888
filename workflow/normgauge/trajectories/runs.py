"""The runs of one entry of the model table, made into one folder, from their beginning or from
where a killed job has left them.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy
from normgauge.calibration.batches import Batch, batches
from normgauge.calibration.tokenisation import load_tokenizer
from normgauge.checkpoints.building import build_model, reinitialise
from normgauge.checkpoints.fine_tuned import FineTunedSource
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint
from normgauge.errors import InputError
from normgauge.gauge.model_gauge import write_gauge
from normgauge.gauge.probes import shortened
from normgauge.gauge.transform import transformed
from normgauge.provenance import atomic_path, code_hash, execution_environment, sha256_file
from normgauge.schemas.trajectories import tables
from normgauge.training.kept import Kept, run_kept
from normgauge.training.optimise import Training
from normgauge.training.plan import Plan, plan_of
from normgauge.training.recipes import Recipe, recipe_named
from normgauge.training.texts import consecutive, corpus_texts, split, spread, train_tokenizer
from normgauge.training.train import execution, new_model
from normgauge.trajectories.recorded import recorded_gauge
from normgauge.trajectories.watching import LocalMatches, Probes, Seen

PathLike = str | os.PathLike[str]
CHARACTERS = 1_000_000  # of a corpus that are read: a sample of the whole
BEGUN = "begun.json"


@dataclass(frozen=True)
class Start:
    """What runs start from. `base`: a checkpoint folder, and `overrides`: keys laid over its
    config; None for a recipe. `corpora`: files by name. `probes`: calibration of the base, of which
    the first `sequences` are seen, each cut to `length`; `budgets`: samples behind a match.
    """

    corpora: Mapping[str, PathLike]
    base: PathLike | None = None
    overrides: Mapping[str, Any] | None = None
    probes: PathLike | None = None
    sequences: int = 16
    length: int = 32
    budgets: Sequence[int] = (39, 500)

    def identity(self) -> dict[str, Any]:
        """What an unfinished folder must have been begun with."""
        files = {f"corpus {name}": path for name, path in self.corpora.items()}
        if self.base is not None:
            folder = Path(self.base)
            files |= {f"base {path.name}": path for path in folder.iterdir() if path.is_file()}
        if self.probes is not None:
            files["probes"] = self.probes
        return {
            **{name: sha256_file(path) for name, path in sorted(files.items())},
            "looked at": [self.sequences, self.length, *self.budgets],
        }


@dataclass(frozen=True)
class _Base:
    """The model that runs start from, its tokenizer, and what probes show of it."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    probes: Probes | None = None
    seen: Seen = field(default_factory=dict)


def make_runs(
    source: FineTunedSource, start: Start, folder: PathLike, unfinished: PathLike, threads: int
) -> None:
    """Make all runs of a source in `unfinished`, which then is renamed to `folder`.

    Each run has step{k}/ for its kept steps, gauge.parquet where one is recorded, and links.parquet
    where matches are made on the way. What a killed job left is continued where it was begun with
    the same files, settings and code, and removed otherwise. Raises InputError for what cannot be
    trained so, before the first step.
    """
    work = Path(unfinished)
    plans = {
        run: plan_of("fine_tuned", source.settings, source.steps, seed)
        for run, (_, seed) in source.runs.items()
    }
    _take_up(work, {"source": repr(source), "code": code_hash(__file__), **start.identity()})
    texts = {name: corpus_texts(path)[0] for name, path in start.corpora.items()}
    base = None if source.recipe else _opened(start, bool(source.match_every))
    streams: dict[str, torch.Tensor] = {}
    for run, plan in plans.items():
        corpus, seed = source.runs[run]
        with execution(seed, threads):
            own = base or _fresh(recipe_named(str(source.recipe)), texts[corpus], seed)
            if not base or corpus not in streams:
                read = consecutive(own.tokenizer, spread(texts[corpus], CHARACTERS), plan.length)
                streams[corpus] = split(read)[0].flatten()
            _make_run(source, run, _Run(own, plan, streams[corpus], start.budgets, work / run))
    for seen in work.glob("*/seen*.pt"):
        seen.unlink()
    (work / BEGUN).unlink()
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(work, folder)


def _take_up(work: Path, identity: Mapping[str, Any]) -> None:
    """Leave an unfinished folder that was begun so; else begin it anew."""
    begun = work / BEGUN
    if begun.is_file() and json.loads(begun.read_text(encoding="utf-8")) == identity:
        return
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    begun.write_text(json.dumps(identity, sort_keys=True), encoding="utf-8")


def _opened(start: Start, matched: bool) -> _Base:
    """The base of a folder, with what its probes show where runs are matched with it."""
    assert start.base is not None
    checkpoint = open_checkpoint(start.base, start.overrides)
    classes = checkpoint.config.architectures or ["no class"]
    if not classes[0].endswith(("LMHeadModel", "ForCausalLM")):
        raise InputError(
            f"{Path(start.base).name}: expected a causal language model to train, found "
            f"{classes[0]}"
        )
    tokenizer = load_tokenizer(start.base).tokenizer
    if not matched:
        return _Base(checkpoint, tokenizer)
    probes = probes_of(start, checkpoint, describe(checkpoint.config))
    return _Base(checkpoint, tokenizer, probes, probes.of(build_model(checkpoint, "float32")))


def _fresh(recipe: Recipe, texts: list[str], seed: int) -> _Base:
    """A recipe's initialisation, and its own tokenizer."""
    torch.manual_seed(seed)
    model = new_model(recipe)
    model.config.architectures = [recipe.architecture]
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    fresh = Checkpoint(model.config, tensors, dict.fromkeys(tensors, "F32"), (Path("recipe"),))
    return _Base(fresh, train_tokenizer(texts, recipe.vocabulary))


@dataclass(frozen=True)
class _Run:
    base: _Base
    plan: Plan
    stream: torch.Tensor
    budgets: Sequence[int]
    folder: Path


def _make_run(source: FineTunedSource, name: str, run: _Run) -> None:
    base, seed = run.base.checkpoint, source.gauge_seed(name)
    begun = base
    run.folder.mkdir(parents=True, exist_ok=True)
    if seed is not None:
        anatomy = describe(base.config)
        gauge = recorded_gauge(anatomy, seed)
        begun = transformed(base, anatomy, gauge)
        write_gauge(run.folder / "gauge.parquet", gauge, {"seed": str(seed), "run": name})
    begun = with_drawn_anew(begun, run.plan)
    watcher = None
    if run.base.probes is not None:
        watcher = LocalMatches(run.base.probes, run.base.seen, source.match_every, run.budgets)
    record = {
        **({"recipe": source.recipe} if source.recipe else {"from": source.base}),
        "provenance": source.provenance,
        "corpus": source.runs[name][0],
        **run.plan.record(),
        **execution_environment(),
    }
    kept = Kept(run.folder, source.keep, run.base.tokenizer, record)
    run_kept(Training(trainable(begun), run.plan, run.stream), kept, f"train {name}", watcher)
    if watcher:
        rows = [link.row() for link in watcher.links]
        tables.write(run.folder / "links.parquet", "trajectory_links", rows, {"run": name})


def with_drawn_anew(checkpoint: Checkpoint, plan: Plan) -> Checkpoint:
    """The checkpoint with the plan's `drawn_anew` parameters of a fresh initialisation. InputError
    where a pattern names none.
    """
    for pattern in plan.drawn_anew:
        if not fnmatch.filter(checkpoint.tensors, pattern):
            raise InputError(f"drawn_anew: {pattern!r} names no parameter of the base; mend it")
    if not plan.drawn_anew:
        return checkpoint
    # a generator of its own: the seed itself may be that of the base's initialisation
    seed = int.from_bytes(hashlib.sha256(f"drawn anew {plan.seed}".encode()).digest()[:4])
    fresh = reinitialise(checkpoint.config, seed, "float32").state_dict()
    drawn = {name: fresh[name].clone() for name in checkpoint.tensors if plan.draws(name)}
    return replace(checkpoint, tensors={**checkpoint.tensors, **drawn})


def trainable(checkpoint: Checkpoint) -> torch.nn.Module:
    """A model in float32 whose weights are its own: the checkpoint's stay as they are."""
    tensors = {name: value.float().clone() for name, value in checkpoint.tensors.items()}
    return build_model(replace(checkpoint, tensors=tensors), "float32")


def probes_of(start: Start, base: Checkpoint, anatomy: Anatomy, skip: int = 0) -> Probes:
    """Probes of a base from its calibration: `start.sequences` of them, after those skipped.
    InputError where there are fewer.
    """
    if start.probes is None or start.base is None:
        raise ValueError("only a base with its calibration has probes")
    found: list[Batch] = list(
        islice(
            batches(start.probes, folder=start.base, config=base.config, batch_size=1),
            skip,
            skip + start.sequences,
        )
    )
    if len(found) < start.sequences:
        raise InputError(
            f"{Path(start.probes).name}: {len(found)} sequences after the first {skip}, expected "
            f"{start.sequences}; calibrate on more"
        )
    return Probes(anatomy, shortened(found, start.length), max(start.budgets))


def copy_kept(step: PathLike, folder: PathLike) -> None:
    """A kept step as a checkpoint folder of its own, complete or not there."""
    with atomic_path(folder) as temporary:
        shutil.copytree(step, temporary)
