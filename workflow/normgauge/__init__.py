"""normgauge: what the normalisation layers of transformers make knowable.

Given a model of transformers, normgauge says along which directions its activations are dead, which
of its coordinates a change of basis could rename without a trace, and what changed between two
checkpoints.

    >>> import torch, transformers, normgauge
    >>> config = transformers.GPT2Config(
    ...     n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=32
    ... )
    >>> model = transformers.GPT2LMHeadModel(config)
    >>> frame = normgauge.fingerprint(model)
    >>> frame.loc[frame.tap == "terminal_norm", "cos_gamma_inv"].round(4).tolist()
    [1.0]

A LayerNorm's output never varies along 1/gamma, one over its gains: the cosine of the direction
with the smallest singular value and 1/gamma is 1, whatever the input.

fingerprint(model, batches)    the spectrum of the activations at every site, as a DataFrame
dead_directions(model)         the unit vector along which each LayerNorm's output cannot vary
describe(model)                spaces, tensors, maps, norms and sites, from the configuration alone
random_gauge(model, seed)      a random change of coordinates that leaves the function alone
transform(model, gauge)        the model in the other coordinates (a copy, or in place)
match(a, b, batches)           the gauge that leads from one model to another, with what is certain
compare(a, b)                  what changed from A to B, more than by chance, gauge taken out
canonical(model)               the one form of all its copies under permutations and signs
lineage(a, b)                  whether one was made from the other, with exact p-values
same(a, b)                     whether two models have one such form, and where they differ

Models are transformers models of the families that docs/anatomy.md lists. What cannot be used
raises `normgauge.InputError`, one line that says what to do. The command `normgauge --help` does
the same for folders and files.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "InputError": "errors",
    "canonical": "live.same",
    "compare": "live.comparing",
    "dead_directions": "live.directions",
    "describe": "live.models",
    "fingerprint": "live.measuring",
    "lineage": "live.lineage",
    "match": "live.matching",
    "random_gauge": "live.changing",
    "same": "live.same",
    "transform": "live.changing",
}
"""Public name -> its module. No import statements, not even for type checkers (`__init__.pyi` has
those): the hash of every script of the workflow follows them (`provenance.code_hash`), and torch
takes seconds to load.
"""

__all__ = ["__version__", *_HOME]


class _Package(ModuleType):
    """This package. Public names are loaded when first used, and a room of the same name does not
    take their place.
    """

    def __getattr__(self, name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        super().__setattr__(name, found)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOME and isinstance(value, ModuleType):
            return  # `normgauge.fingerprint` is the function, also after the room was imported
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *__all__})


sys.modules[__name__].__class__ = _Package
