"""Two checkpoints made a pair: opened lazily and checked against each other, configs, vocabularies,
tensors and values.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from transformers import PretrainedConfig

from normgauge.anatomy import describe, described_classes
from normgauge.anatomy.heads import with_unread
from normgauge.anatomy.options import has_pooler
from normgauge.anatomy.structure import Positions
from normgauge.calibration.tokenisation import find_tokenizer, load_tokenizer
from normgauge.checkpoint_comparison.pair import ROWS, Pair, Side
from normgauge.checkpoint_comparison.precision import BITS
from normgauge.checkpoints.configuration import open_config
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint, untied
from normgauge.checkpoints.placing import POOLER_KEY, heads_anatomy
from normgauge.errors import InputError
from normgauge.provenance import sha256_file

SILENT = (
    *(
        "architectures",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "_name_or_path",
        "id2label",
        "label2id",
        "num_labels",
    ),
    *("tie_word_embeddings", POOLER_KEY),
)
"""Keys of a config that say nothing about the part of the model which both checkpoints share, or
that what is stored decides.
"""

TRAINING = (
    *("initializer", "gradient_checkpointing", "pdrop", "layerdrop", "router_aux_loss"),
    *("apply_spec_augment", "mask_time", "mask_feature", "task_specific_params"),
)
"""Parts of the names of keys that serve training alone."""


def open_pair(
    folders: tuple[str | os.PathLike[str], str | os.PathLike[str]],
    overrides: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None] = (None, None),
) -> Pair:
    """Two checkpoint folders as a pair; weights stay in their memory maps until they are read.

    Where the two classes differ, the bare model that they share is compared, and where one side
    alone ties its readout, both are opened untied. Raises InputError for identical files, for keys
    of the configs that change the function and differ, for vocabularies, tensor sets, shapes that
    differ (named), for values that are not finite, and as `open_checkpoint` does.
    """
    configs = [
        open_config(folder, override) for folder, override in zip(folders, overrides, strict=True)
    ]
    noted = check_configs(configs)
    opened = _opened(folders, overrides, {})
    if len({checkpoint.config.architectures[0] for checkpoint in opened}) > 1:
        bare = described_classes(opened[0].config.model_type)[0]
        opened = _opened(folders, overrides, {"architectures": [bare]})
    if len({has_pooler(checkpoint.config) for checkpoint in opened}) > 1:
        opened = _opened(
            folders, overrides, {"architectures": opened[0].config.architectures, POOLER_KEY: False}
        )
    if len({describe(checkpoint.config).tied for checkpoint in opened}) > 1:
        opened = [untied(checkpoint) for checkpoint in opened]
        noted.append("one side alone ties its readout to the embeddings: both are opened untied")
    _check_files(opened)
    _check_vocabularies(folders)
    for note in noted:
        print(note, file=sys.stderr)
    return replace(make_pair(*opened), noted=tuple(noted))


def _opened(
    folders: Sequence[str | os.PathLike[str]],
    overrides: Sequence[Mapping[str, Any] | None],
    keys: Mapping[str, Any],
) -> list[Checkpoint]:
    return [
        open_checkpoint(folder, {**(override or {}), **keys})
        for folder, override in zip(folders, overrides, strict=True)
    ]


def make_pair(first: Checkpoint, second: Checkpoint) -> Pair:
    """The pair of two opened checkpoints of one class. Raises InputError as `open_pair` does for
    tensors and their values.
    """
    listed = {tensor.name for tensor in describe(first.config).tensors}
    held = [{**checkpoint.tensors, **checkpoint.heads()} for checkpoint in (first, second)]
    heads = {
        name: tuple(value.shape)
        for name, value in held[0].items()
        if name not in listed
        and name in held[1]
        and value.shape == held[1][name].shape
        and {value.dtype, held[1][name].dtype} <= BITS.keys()
    }
    known = heads_anatomy(first.config, heads)
    unread = heads.keys() - {tensor.name for tensor in known.tensors}
    anatomy = with_unread(known, {name: heads[name] for name in sorted(unread)})
    sides: list[Side] = []
    unmatched: dict[str, str] = {}
    for label, checkpoint, tensors in zip("AB", (first, second), held, strict=True):
        unmatched |= {name: label for name in tensors if name not in listed and name not in heads}
        stored = {
            **checkpoint.stored,
            **{name: checkpoint.unused[name].stored for name in checkpoint.heads()},
        }
        kept = {name: value for name, value in tensors.items() if name in listed or name in heads}
        sides.append(Side(label, anatomy, checkpoint.config, kept, stored, checkpoint.files))
    _check_tensors(sides[0], sides[1])
    return Pair(sides[0], sides[1], unmatched, tuple(heads))


def check_configs(configs: Sequence[Any]) -> list[str]:
    """What differs and does not change the function, a sentence each; InputError for a key that
    does change it.
    """
    first, second = (
        {key: value for key, value in copy.deepcopy(config).to_dict().items() if key not in SILENT}
        for config in configs
    )
    noted = []
    for key in sorted(first.keys() | second.keys(), key=lambda key: (key != "model_type", key)):
        if _shapes(key, first.get(key)) == _shapes(key, second.get(key)):
            continue
        differs = f"config.json: {key} is {first.get(key)!r} in A and {second.get(key)!r} in B"
        if first["model_type"] == second["model_type"] and not _changes_function(key, configs):
            noted.append(f"{differs}; it does not change the function")
            continue
        raise InputError(f"{differs}; expected two checkpoints of one architecture")
    return noted


def _changes_function(key: str, configs: Sequence[Any]) -> bool:
    """Whether a config's key can change what the weights compute: not one that the family's class
    does not know (a tool's stamp), that serves training alone, or that only bounds the length where
    positions are rotary and do not depend on it.
    """
    known = (
        copy.deepcopy(type(configs[0])()).to_dict().keys()
        if isinstance(configs[0], PretrainedConfig)
        else {key}
    )
    if key not in known or any(part in key for part in TRAINING):
        return False
    bounds = key == "max_position_embeddings" and describe(configs[0]).positions == Positions.ROTARY
    return not (bounds and all(_fixed_rotation(config) for config in configs))


def _fixed_rotation(config: Any) -> bool:
    return (config.rope_parameters or {}).get("rope_type", "default") == "default"


def _shapes(key: str, value: Any) -> Any:
    """The part of a config's value that both sides must share: dropout, token ids and caches do not
    change what the weights mean.
    """
    ignored = (
        "dropout",
        "_token_id",
        "_token_ids",
        "use_cache",
        "problem_type",
        "finetuning_task",
        "output_",
        "return_dict",
        "do_sample",
    )
    return (
        None
        if any(part in key for part in ignored)
        or not isinstance(value, int | float | str | list | dict)
        else value
    )


def _check_files(opened: Sequence[Checkpoint]) -> None:
    first, second = (
        sorted(sha256_file(path) for path in checkpoint.files) for checkpoint in opened
    )
    if first == second:
        raise InputError(
            f"A and B are identical: {opened[0].files[0].name} has the same sha256 in both; give "
            "two different checkpoints"
        )


def _check_vocabularies(folders: Sequence[str | os.PathLike[str]]) -> None:
    """Tokens by id, where both folders say; how a text is cut, padded or truncated does not
    matter.
    """
    if any(find_tokenizer(folder) is None for folder in folders):
        return
    first, second = (load_tokenizer(folder).tokenizer.get_vocab() for folder in folders)
    if first == second:
        return
    token = min(
        first.keys() | second.keys(),
        key=lambda token: (first.get(token) == second.get(token), first.get(token, 0), token),
    )
    places = [vocabulary.get(token, "none") for vocabulary in (first, second)]
    raise InputError(
        f"vocabularies: token {token!r} has the id {places[0]} in A and {places[1]} in B; expected "
        "one "
        f"vocabulary, since rows of the embeddings are compared by id"
    )


def _check_tensors(first: Side, second: Side) -> None:
    for tensor in first.anatomy.tensors:
        held = []
        for side in (first, second):
            try:
                held.append(side.tensors[side.held(tensor.name)])
            except StopIteration:
                raise InputError(
                    f"{side.files[0].name} of {side.label}: tensor {tensor.name} of "
                    f"{first.anatomy.architecture} is missing; "
                    f"expected both checkpoints to store it"
                ) from None
        for side, value in zip((first, second), held, strict=True):
            if tuple(value.shape) != tensor.shape:
                raise InputError(
                    f"{side.files[0].name} of {side.label}: tensor {tensor.name} has shape "
                    f"{list(value.shape)}, "
                    f"{first.anatomy.architecture} expects {list(tensor.shape)}; mend the config"
                )
            if value.dtype not in BITS:
                raise InputError(
                    f"{side.files[0].name} of {side.label}: tensor {tensor.name} is {value.dtype}; "
                    "store the weights unquantised"
                )
            for part in value.split(ROWS):
                if not part.isfinite().all():
                    raise InputError(
                        f"{side.files[0].name} of {side.label}: tensor {tensor.name} holds values "
                        "that are NaN or infinite; "
                        f"the checkpoint is unusable"
                    )
