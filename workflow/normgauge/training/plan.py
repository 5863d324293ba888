"""How a model is trained, as data. Reads numbers of the model table and must not load torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from normgauge.errors import InputError
from normgauge.training.recipes import Recipe

ADAMW, SGD = "adamw", "sgd"
PATTERNS = ("parameters", "drawn_anew")  # settings that are patterns of names
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "linear": lambda done: 1.0 - 0.9 * done,
    "cosine": lambda done: 0.55 + 0.45 * math.cos(math.pi * done),
}
"""Share of the peak learning rate after a share of the steps that follow the warm-up; the last two
fall to a tenth.
"""


@dataclass(frozen=True)
class Plan:
    """What one run of training does.

    `batch` sequences of `length` tokens a step, at uniform random places of the text. `period`:
    where it is not 0, each sequence is its first so many tokens, over and over, which teaches to
    copy. `momentum`:
    of SGD, and of AdamW its first average. `weight_decay`: of matrices alone. `parameters`:
    patterns of names (`*.mlp.*`); all are trained when there are none. `drawn_anew`: patterns of
    those that get the values of a fresh initialisation before the first step.
    """

    steps: int
    learning_rate: float
    seed: int
    schedule: str = "constant"
    warmup: int = 0
    batch: int = 4
    length: int = 128
    optimizer: str = ADAMW
    momentum: float = 0.9
    weight_decay: float = 0.1
    parameters: tuple[str, ...] = ()
    period: int = 0
    drawn_anew: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens seen in training."""
        return self.steps * self.batch * self.length

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        return self.learning_rate * rate_share(self.schedule, step, self.warmup, self.steps)

    def trains(self, name: str) -> bool:
        """Whether the parameter of this name is trained."""
        return not self.parameters or any(fnmatchcase(name, each) for each in self.parameters)

    def draws(self, name: str) -> bool:
        """Whether the parameter of this name is drawn again before the first step."""
        return any(fnmatchcase(name, each) for each in self.drawn_anew)

    def record(self) -> dict[str, Any]:
        """All of it, for files."""
        listed = {"parameters": list(self.parameters), "drawn_anew": list(self.drawn_anew)}
        return {**asdict(self), **listed}


def rate_share(schedule: str, step: int, warmup: int, steps: int) -> float:
    """Share of the peak learning rate at a step: linear up to 1 over `warmup`, then as the schedule
    says.
    """
    if step < warmup:
        return (step + 1) / warmup
    return SCHEDULES[schedule]((step - warmup) / max(1, steps - warmup))


def recipe_plan(recipe: Recipe, seed: int) -> Plan:
    """How a recipe is trained."""
    return Plan(
        recipe.steps,
        recipe.learning_rate,
        seed,
        "cosine",
        recipe.warmup,
        recipe.batch,
        recipe.context,
    )


def plan_of(where: str, settings: Mapping[str, Any], steps: int, seed: int) -> Plan:
    """The plan of a table's entry. Raises InputError, naming the key, for what is no such number or
    name.
    """
    positive = ("learning_rate", "batch", "length")
    for key, value in settings.items():
        if key in ("schedule", "optimizer"):
            known = tuple(SCHEDULES) if key == "schedule" else (ADAMW, SGD)
            if value not in known:
                raise InputError(f"{where}.{key}: {value!r} is unknown; known: {', '.join(known)}")
        elif key in PATTERNS:
            if not isinstance(value, list | tuple) or not all(isinstance(x, str) for x in value):
                raise InputError(f"{where}.{key}: expected a list of patterns, found {value}")
        else:
            _number(f"{where}.{key}", value, key in positive)
    if settings.get("momentum", 0) >= 1:
        raise InputError(f"{where}.momentum: expected less than 1, found {settings['momentum']}")
    if settings.get("length", 2) < 2:
        raise InputError(f"{where}.length: a sequence of {settings['length']} has nothing to learn")
    if not isinstance(settings.get("period", 0), int):
        raise InputError(f"{where}.period: expected a whole number, found {settings['period']}")
    patterns = {key: tuple(settings.get(key, ())) for key in PATTERNS}
    return Plan(**{**settings, "steps": steps, "seed": seed, **patterns})


def _number(where: str, value: Any, positive: bool) -> None:
    if isinstance(value, str):
        raise InputError(
            f"{where}: expected a number, found the text {value!r} (YAML reads 3.0e-4 as one, 3e-4 "
            "as text)"
        )
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value < 0
        or (positive and value == 0)
    ):
        raise InputError(
            f"{where}: expected a number {'above' if positive else 'from'} 0, found {value!r}"
        )
