"""The source kind `fine_tuned`: runs of training from another model of the table, or from a fresh
initialisation, whose kept steps are revisions of one model id.

Several corpora or seeds make several runs. What the numbers of an entry must be is the business of
`training.plan`; here stands what names revisions and files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from normgauge.checkpoints.entry_checks import distinct, mapping, matching, only_keys, seeds_of
from normgauge.errors import InputError

CORPORA = ("kjv", "python-docs", "python-code")
"""Texts that a language model can be trained on."""
SETTINGS = (
    "learning_rate",
    "schedule",
    "warmup",
    "batch",
    "length",
    "optimizer",
    "momentum",
    "weight_decay",
    "parameters",
    "period",
    "drawn_anew",
)
_BASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9._-]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class FineTunedSource:
    """Runs of training: every corpus with every seed, `steps` long, of which the steps `keep` are
    kept, and the last always.

    `base`: `model@revision` that they start from, or None for the fresh initialisation of `recipe`.
    `gauge`: seed of the change of coordinates that the first run's base is given before its first
    step; the next run has the next seed; None for none. `match_every`: strides at which a run's
    coordinates are matched on the way. `settings`: what else the entry says, by key.
    """

    base: str | None
    recipe: str | None
    corpora: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    keep: tuple[int, ...]
    gauge: int | None = None
    match_every: tuple[int, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    provenance = "trained here"

    @property
    def runs(self) -> dict[str, tuple[str, int]]:
        """Corpus and seed of each run, by its name: what there are several of."""
        return {
            "-".join([corpus] * (len(self.corpora) > 1) + [f"seed{seed}"] * (len(self.seeds) > 1))
            or "run": (corpus, seed)
            for corpus, seed in product(self.corpora, self.seeds)
        }

    @property
    def kept(self) -> dict[str, tuple[str, int]]:
        """Run and step of each revision."""
        several = len(self.runs) > 1
        return {
            f"{run}-step{step}" if several else f"step{step}": (run, step)
            for run in self.runs
            for step in self.keep
        }

    @property
    def revisions(self) -> tuple[str, ...]:
        return tuple(self.kept)

    def gauge_seed(self, run: str) -> int | None:
        """Seed of the recorded gauge of a run."""
        return None if self.gauge is None else self.gauge + list(self.runs).index(run)

    def record(self, revision: str) -> dict[str, Any]:
        """What the manifest says of this source at one revision."""
        run, step = self.kept[revision]
        corpus, seed = self.runs[run]
        start = {"from": self.base} if self.base else {"recipe": self.recipe}
        recorded = {} if self.gauge is None else {"gauge": self.gauge_seed(run)}
        return {
            "fine_tuned": {
                **start,
                "corpus": corpus,
                "seed": seed,
                "step": step,
                "steps": self.steps,
                **recorded,
                **dict(self.settings),
            }
        }


def parse_fine_tuned(where: str, source: Mapping[str, Any]) -> FineTunedSource:
    """The source of an entry. Raises InputError that names the key."""
    only_keys(where, source, required=("fine_tuned",))
    where = f"{where}.fine_tuned"
    found = mapping(where, source["fine_tuned"])
    only_keys(
        where,
        found,
        required=("corpus", "seed", "steps", "learning_rate"),
        optional=("from", "recipe", "keep", "gauge", "match_every", *SETTINGS),
    )
    if ("from" in found) == ("recipe" in found):
        raise InputError(
            f"{where}: expected either `from` (model@revision of the table) or `recipe` (a fresh "
            "initialisation)"
        )
    base = recipe = None
    if "from" in found:
        base = matching(
            f"{where}.from", found["from"], _BASE, "`model@revision` of the model table"
        )
    else:
        recipe = matching(
            f"{where}.recipe", found["recipe"], _NAME, "the name of a training recipe"
        )
    if recipe and found.get("match_every"):
        raise InputError(
            f"{where}.match_every: a fresh initialisation has no base to be matched with; start "
            "`from` a model"
        )
    steps = _whole(f"{where}.steps", found["steps"], 1)
    return FineTunedSource(
        base,
        recipe,
        _corpora(where, found["corpus"]),
        seeds_of(where, found["seed"]),
        steps,
        _kept(f"{where}.keep", found.get("keep", []), steps),
        None if "gauge" not in found else _whole(f"{where}.gauge", found["gauge"], 0),
        _strides(f"{where}.match_every", found.get("match_every", []), steps),
        {key: found[key] for key in SETTINGS if key in found},
    )


def _corpora(where: str, value: Any) -> tuple[str, ...]:
    listed = tuple(value) if isinstance(value, list) else (value,)
    for corpus in listed:
        if corpus not in CORPORA:
            raise InputError(
                f"{where}.corpus: {corpus!r} is no text to train on; choose of {', '.join(CORPORA)}"
            )
    if not listed:
        raise InputError(f"{where}.corpus: expected one of {', '.join(CORPORA)}, or a list of them")
    distinct(f"{where}.corpus", listed)
    return listed


def _whole(where: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise InputError(f"{where}: expected a whole number from {least} up, found {value!r}")
    return value


def _kept(where: str, value: Any, steps: int) -> tuple[int, ...]:
    """The steps to keep in order, the last one always."""
    listed = value if isinstance(value, list) else [value]
    kept = tuple(_whole(where, step, 0) for step in listed)
    distinct(where, kept)
    if beyond := [step for step in kept if step > steps]:
        raise InputError(f"{where}: {beyond[0]} is beyond the {steps} steps of the run")
    return tuple(sorted({*kept, steps}))


def _strides(where: str, value: Any, steps: int) -> tuple[int, ...]:
    """Strides of matches made on the way, smallest first; each divides the number of steps."""
    listed = value if isinstance(value, list) else [value]
    strides = tuple(sorted(_whole(where, stride, 1) for stride in listed))
    distinct(where, strides)
    if odd := [stride for stride in strides if steps % stride]:
        raise InputError(
            f"{where}: {odd[0]} does not divide the {steps} steps of the run, so a chain would not "
            "reach its end"
        )
    return strides
