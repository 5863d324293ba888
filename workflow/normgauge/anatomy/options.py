"""What families read off a config: head sizes, the class it names, options that are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normgauge.errors import InputError


def head_size(config: Any) -> int:
    """Coordinates per attention head of a class that heeds the config's head_dim: that, or the
    width split evenly.
    """
    return getattr(config, "head_dim", None) or split_evenly(
        config, config.hidden_size, config.num_attention_heads
    )


def even_head_size(config: Any) -> int:
    """Coordinates per attention head of a class that always splits its width evenly, whatever
    head_dim the config holds.
    """
    return split_evenly(config, config.hidden_size, config.num_attention_heads)


def rotary_size(config: Any) -> int:
    """Coordinates of each head that turn with the position, an even number: all of them unless the
    config rotates a part.
    """
    part = int(head_size(config) * config.rope_parameters.get("partial_rotary_factor", 1.0))
    return part + part % 2


def split_evenly(config: Any, width: int, heads: int) -> int:
    """Coordinates per head; InputError when the heads do not divide the width."""
    if width % heads:
        raise InputError(
            f"{config.model_type} config: width is {width}, expected a multiple of the attention "
            f"heads ({heads}); correct it"
        )
    return width // heads


def has_pooler(config: Any) -> bool:
    """Whether a bare encoder has its pooler: `add_pooling_layer`, which transformers takes beside
    the config, is kept in it here.
    """
    return bool(getattr(config, "add_pooling_layer", True))


def select_architecture(config: Any, known: Mapping[str, Any]) -> Any:
    """The entry of `known` for `config.architectures[0]`; InputError that lists the classes known
    when there is none.
    """
    named = (getattr(config, "architectures", None) or [None])[0]
    if named not in known:
        found = f"class {named} is not described" if named else "architectures is missing"
        raise InputError(
            f"{config.model_type} config: {found}; expected architectures to name one of "
            f"{', '.join(known)}"
        )
    return known[named]


def refuse_options(config: Any, options: Sequence[str]) -> None:
    """InputError naming the first of `options` that the config switches on: each adds parts that
    are not described.
    """
    for option in options:
        if getattr(config, option, None):
            raise InputError(
                f"{config.model_type} config: {option}={getattr(config, option)!r} adds parts that "
                "the anatomy does not describe; "
                f"expected it unset, choose a checkpoint without it"
            )


def require_options(config: Any, expected: Mapping[str, Any]) -> None:
    """InputError naming the first option whose value is not the one that is described."""
    for option, value in expected.items():
        if (found := getattr(config, option, None)) != value:
            raise InputError(
                f"{config.model_type} config: {option}={found!r} is not described; expected "
                f"{value!r}, choose a checkpoint with it"
            )
