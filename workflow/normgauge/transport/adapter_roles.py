"""What each tensor of a PEFT adapter is to the weight that it belongs to, read off its name.

In W' = W + B A the factor A lies on the weight's input axis and B, with its bias, on its output
axis. DoRA (Liu et al. 2024, eq. 5) writes W' = m V/|V| with V = W + B A and the lengths of V's
rows, one per
output: m moves by the absolute factors of the output axis, and follows where rows do not mix and
their lengths stay. Whole tensors (biases, modules_to_save, base_layer) and rows of an embedding are
the model's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

PREFIX = "base_model.model."
_FACTOR = re.compile(
    r"(?P<module>.+)\.lora_(?P<part>A|B|embedding_A|embedding_B|magnitude_vector)(?P<rest>(\.[^.]+){0,2})"
)
_TOKENS = re.compile(
    r"(?P<module>.+?)(\.token_adapter)?\.trainable_tokens_(delta|original)(\.[^.]+)?"
)
_SAVED = re.compile(r"(?P<module>.+?)\.modules_to_save\.((?P<adapter>[^.]+)\.)?(?P<inner>.+)")


class Part(StrEnum):
    """What a tensor is to its weight. `INPUT` and `OUTPUT`: a factor on one of its axes, `BIAS`: of
    the output factor.
    """

    INPUT = "A"
    OUTPUT = "B"
    BIAS = "bias of B"
    EMBEDDING_INPUT = "embedding A"
    EMBEDDING_OUTPUT = "embedding B"
    MAGNITUDE = "magnitude"
    ROWS = "rows"
    WHOLE = "whole"


_FACTORS = {
    "A": Part.INPUT,
    "B": Part.OUTPUT,
    "embedding_A": Part.EMBEDDING_INPUT,
    "embedding_B": Part.EMBEDDING_OUTPUT,
    "magnitude_vector": Part.MAGNITUDE,
}


@dataclass(frozen=True)
class Belonging:
    """`part` of the model's tensor named by one of `candidates`, in order of preference, as far as
    the adapter's file names it.
    """

    part: Part
    candidates: tuple[str, ...]


def belonging(name: str) -> Belonging:
    """What a tensor of an adapter's file belongs to, by its name there."""
    inner = name.removeprefix(PREFIX)
    if found := _FACTOR.fullmatch(inner):
        part = _FACTORS[found["part"]]
        if part == Part.OUTPUT and found["rest"].endswith(".bias"):
            part = Part.BIAS
        return Belonging(part, (f"{found['module']}.weight",))
    if found := _TOKENS.fullmatch(inner):
        return Belonging(Part.ROWS, (f"{found['module']}.weight",))
    whole = inner.replace(".base_layer.", ".")
    # the adapter's name follows where the state was not saved by PEFT
    if found := _SAVED.fullmatch(whole):
        names = [f"{found['module']}.{found['inner']}"]
        if found["adapter"]:
            names.append(f"{found['module']}.{found['adapter']}.{found['inner']}")
        return Belonging(Part.WHOLE, tuple(names))
    return Belonging(Part.WHOLE, (whole,))


def model_names(names: Iterable[str], listed: Iterable[str]) -> dict[str, str | None]:
    """Names in an adapter's file -> names in the model, None where it has none.

    The file may lack the model's prefix, or have one that the model lacks, as when one of the two
    is
    the bare model: then all of its tensors do.
    """
    belongings = {name: belonging(name).candidates for name in names}
    known = set(listed)
    prefixes = dict.fromkeys(f"{name.partition('.')[0]}." for name in known)
    ways = [
        lambda name: name,
        lambda name: name.partition(".")[2],
        *((lambda name, p=prefix: p + name) for prefix in prefixes),
    ]
    found = [
        {
            name: next((way(each) for each in candidates if way(each) in known), None)
            for name, candidates in belongings.items()
        }
        for way in ways
    ]
    complete = [each for each in found if None not in each.values()]
    return complete[0] if complete else found[0]
