"""Whether the anatomy of a config describes the class that transformers builds of it."""

from __future__ import annotations

from torch import nn

from normgauge.anatomy.structure import Anatomy
from normgauge.errors import InputError


def require_agreement(anatomy: Anatomy, model: nn.Module) -> None:
    """InputError unless both have the same parameters, of the same shapes.

    They differ where a config holds a key that one of them heeds and the other does not, such as
    the size of heads in a family that always splits the width. `model` may be without values.
    """
    held = {name: tuple(tensor.shape) for name, tensor in model.state_dict(keep_vars=True).items()}
    described = {tensor.name: tensor.shape for tensor in anatomy.tensors}
    learned = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name in sorted(described.keys() | learned):
        ours, theirs = described.get(name), held.get(name)
        if ours != theirs:
            raise InputError(
                f"config.json: tensor {name} of {anatomy.architecture} is {_shown(theirs)} in the "
                f"class and {_shown(ours)} by the anatomy "
                "of these settings; a key of the config changes one of them alone: remove what the "
                "class does not have"
            )


def _shown(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else str(list(shape))
