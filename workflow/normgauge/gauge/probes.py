"""Probes that two models share: the first positions of calibration sequences, and one numbering of
tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from normgauge.calibration.batches import Batch
from normgauge.calibration.tokenisation import find_tokenizer, load_tokenizer
from normgauge.errors import InputError


def shortened(batches: Iterable[Batch], length: int) -> list[Batch]:
    """Batches whose token grids (ids, masks, types: everything that is not floating point) end
    after `length` positions.

    Features of speech and pictures are kept whole: their models have no other length.
    """

    def cut(value):
        return (
            value
            if value is None or value.is_floating_point() or value.ndim < 2
            else value[:, :length]
        )

    return [
        Batch(
            {name: cut(value) for name, value in batch.inputs.items()},
            {name: cut(value) for name, value in batch.masks.items()},
        )
        for batch in batches
    ]


def require_same_tokens(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """InputError when the tokenizers of two checkpoint folders give one token two numbers: the same
    ids would be two texts.

    Folders without a tokenizer are not compared.
    """
    if find_tokenizer(source) and find_tokenizer(target):
        first, second = (
            load_tokenizer(folder).tokenizer.get_vocab() for folder in (source, target)
        )
        if first != second:
            raise InputError(
                f"{target}: its tokenizer differs from that of {source}; compare models of one "
                "tokenizer"
            )
