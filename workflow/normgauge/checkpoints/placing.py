"""Which stored tensor is which tensor of which class: opening goes by what is stored
(docs/checkpoints.md).
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from normgauge.anatomy import describe, described_classes
from normgauge.anatomy.heads import (
    base_prefix,
    body_parts,
    reads_vocabulary_or_nothing,
    siblings,
    with_heads,
)
from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoints.architectures import empty_model, free_ties, is_class_of, model_class
from normgauge.checkpoints.inner import inner_names
from normgauge.errors import InputError

Shapes = Mapping[str, tuple[int, ...]]

# Stored tensors that the class does not hold because it computes them, or that older versions
# stored without using them.
SUPERFLUOUS = (
    r"(.*\.)?position_ids",  # 0, 1, 2, ...: BERT, RoBERTa, ALBERT before they became non-persistent
    r"(.*\.)?rotary_emb\.inv_freq",  # rotary frequencies, recomputed: Llama, GPT-NeoX
    r"(.*\.)?h\.\d+\.attn\.(bias|masked_bias)",  # causal masks: GPT-2
    r"(.*\.)?layers\.\d+\.attention\.(bias|masked_bias)",  # causal masks: GPT-NeoX
    # never used: T5
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)
# Modules that torch puts around others: compiled, sharded and checkpointed ones. Their names may
# stand anywhere in a path.
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
PARALLEL = "module."  # torch.nn.DataParallel puts it before every name
POOLER_KEY = "add_pooling_layer"
REMEDY = "restore the file, or name the class that was stored in config.architectures"


class Reason(StrEnum):
    """Why a stored tensor is not used."""

    COMPUTED = "computed by the class itself"
    HEAD = "a head that the class lacks"
    UNKNOWN = "no described class says what it reads"


@dataclass(frozen=True)
class Placement:
    """Where the stored tensors of a checkpoint stand.

    config: of the class that is opened. names: stored name -> name in the class. unused: stored
    name -> the name that it would have and why the class does not use it. copies: tensors that the
    class holds apart and that are stored once, each with the one that it is a copy of. notes: what
    was done that the files do not say, a sentence each.
    """

    config: Any
    names: Mapping[str, str]
    unused: Mapping[str, tuple[str, Reason]]
    copies: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Fit:
    """One class against the stored names. `missing`: tensors of the class that are not stored,
    under no tied name either.
    """

    config: Any
    names: Mapping[str, str]
    leftover: Mapping[str, str]
    missing: tuple[str, ...]
    misshapen: tuple[str, ...]
    ties: Mapping[str, str] = field(default_factory=dict)


def place(config: Any, shapes: Shapes, where: str, same: Callable[[str, str], bool]) -> Placement:
    """Find the class and the place in it of each stored tensor.

    config: whose `architectures` may be empty or name no class that is described. shapes: stored
        name ->
    shape. where: the file that errors name. same: whether two stored tensors hold the same values;
    asked of tied tensors that are both stored. Raises InputError for two tensors that stand for
    one, an older fused layout, a tensor inside the body that the class has no place for, and where
    no class fits.
    """
    without_wrappers = unwrapped(tuple(shapes))
    notes = [
        f"the wrappers' prefixes of {name} and others are dropped"
        for name, kept in without_wrappers.items()
        if kept != name
    ][:1]
    plain = inner_names(config, without_wrappers)
    if config_names_class(config):
        fit = _without_pooler(_fit(config, plain, shapes))
    else:
        stated = (config.architectures or [None])[0]
        fit = _best_fit(config, plain, shapes, where)
        if stated:
            notes.append(
                f"architectures names {stated}, which is not a described {config.model_type} class"
            )
    loose = _untied(fit, plain, shapes, same)
    if loose is not fit:
        notes.append(
            "the config ties the readout to the embeddings, but both are stored and differ: opened "
            "untied"
        )
    _refuse_twice(fit.names, where)
    apart = free_ties(config) | {
        tied: source for tied, source in fit.ties.items() if tied not in loose.ties
    }
    placement = Placement(
        loose.config,
        loose.names,
        _unused(loose, shapes, where),
        copies_of(apart, loose.names.values()),
    )
    return replace(placement, notes=(*notes, *_said(placement)))


def copies_of(apart: Mapping[str, str], held: Collection[str]) -> dict[str, str]:
    """Of pairs of names that could be tied and are not: the one that is not held, and the one that
    it is a copy of.
    """
    pairs = [pair for tied, source in apart.items() for pair in ((tied, source), (source, tied))]
    return {name: other for name, other in pairs if name not in held and other in held}


def unwrapped(names: Sequence[str]) -> dict[str, str]:
    """Stored name -> the name without the modules that torch wraps around others."""
    found = {
        name: ".".join(part for part in name.split(".") if part not in WRAPPERS) for name in names
    }
    while found and all(name.startswith(PARALLEL) for name in found.values()):
        found = {stored: name.removeprefix(PARALLEL) for stored, name in found.items()}
    return found


def config_names_class(config: Any) -> bool:
    """Whether `config.architectures[0]` is a described class of the config's family."""
    named = (config.architectures or [None])[0]
    return named in described_classes(config.model_type) and is_class_of(config, named)


def bare_config(config: Any) -> Any:
    """The same config for the family's bare class."""
    return _with_class(config, described_classes(config.model_type)[0])


def heads_anatomy(config: Any, shapes: Shapes) -> Anatomy:
    """The anatomy of a placed config, with those of its unused tensors (`shapes`, by name) that are
    heads of other classes.
    """
    anatomy = describe(config)
    if not shapes:
        return anatomy
    labels = tuple(
        sorted(
            {
                shape[0]
                for shape in shapes.values()
                if len(shape) == 2 and shape[0] != config.num_labels
            }
        )
    )
    others = tuple(siblings(config, described_classes(config.model_type), describe, labels))
    return with_heads(anatomy, others, shapes)


def _with_class(config: Any, name: str, **keys: Any) -> Any:
    if (config.architectures or [None])[0] == name and not keys:
        return config
    changed = copy.deepcopy(config)
    changed.architectures = [name]
    for key, value in keys.items():
        setattr(changed, key, value)
    return changed


def _fit(config: Any, plain: Mapping[str, str], shapes: Shapes) -> _Fit:
    model = empty_model(config, torch.float32)
    expected = model.state_dict()
    targets = dict(zip(plain, renamed(model, tuple(plain.values())), strict=True))
    names = {stored: target for stored, target in targets.items() if target in expected}
    ties = dict(getattr(model, "all_tied_weights_keys", {}))
    held = set(names.values())
    for tied, source in (ties | free_ties(config)).items():
        held |= {tied, source} if held & {tied, source} else set()
    return _Fit(
        config,
        names,
        {stored: target for stored, target in targets.items() if target not in expected},
        tuple(name for name in expected if name not in held),
        tuple(
            target
            for stored, target in names.items()
            if tuple(shapes[stored]) != tuple(expected[target].shape)
        ),
        ties,
    )


def renamed(model: torch.nn.Module, sources: Sequence[str]) -> list[str]:
    """The stored names in the class: transformers' own renamings of older layouts, and the base
    model's prefix added or removed.
    """
    if not isinstance(model, PreTrainedModel):
        return list(sources)
    conversions = get_model_conversion_mapping(model)
    renamings = [conversion for conversion in conversions if isinstance(conversion, WeightRenaming)]
    converters = [
        conversion for conversion in conversions if isinstance(conversion, WeightConverter)
    ]
    expected = model.state_dict()
    targets = []
    for source in sources:
        target, converter = rename_source_key(
            source, renamings, converters, model.base_model_prefix or None, expected
        )
        if converter is not None:
            raise InputError(
                f"tensor {source} is in an older fused layout ({converter}); save the checkpoint "
                "again with a current transformers"
            )
        targets.append(target)
    return targets


def _without_pooler(fit: _Fit) -> _Fit:
    """The fit of a bare class whose pooler is not stored: without it, as transformers builds it on
    request.
    """
    pooler = bool(fit.missing) and all("pooler" in name.split(".") for name in fit.missing)
    if (
        not pooler
        or POOLER_KEY not in inspect.signature(model_class(fit.config).__init__).parameters
    ):
        return fit
    names = _with_class(fit.config, fit.config.architectures[0], **{POOLER_KEY: False})
    return replace(fit, config=names, missing=())


def _best_fit(config: Any, plain: Mapping[str, str], shapes: Shapes, where: str) -> _Fit:
    """The fit of the class, without a label head of its own, that is stored completely and uses the
    most tensors.
    """
    fits = []
    for name in described_classes(config.model_type):
        candidate = _with_class(config, name)
        if is_class_of(candidate, name) and reads_vocabulary_or_nothing(describe(candidate)):
            fits.append(_without_pooler(_fit(candidate, plain, shapes)))
    complete = [fit for fit in fits if not fit.missing and not fit.misshapen]
    if not complete:
        nearest = min(fits, key=lambda fit: len(fit.missing) + len(fit.misshapen))
        fault = (
            f"tensor {nearest.missing[0]} is missing"
            if nearest.missing
            else f"tensor {nearest.misshapen[0]} has another shape"
        )
        raise InputError(
            f"{where}: no described {config.model_type} class is stored there: of "
            f"{nearest.config.architectures[0]} {fault}; {REMEDY}"
        )
    return max(complete, key=lambda fit: len(fit.names))


def _untied(
    fit: _Fit, plain: Mapping[str, str], shapes: Shapes, same: Callable[[str, str], bool]
) -> _Fit:
    """The fit with its word embeddings untied where the config ties them and both are stored with
    different values.
    """
    stored = {target: name for name, target in fit.names.items()}
    for tied, source in fit.ties.items():
        if tied in stored and source in stored and not same(stored[tied], stored[source]):
            loose = _fit(without_ties(fit.config), plain, shapes)
            if tied not in loose.ties:  # T5 1.0 ties whatever its config says
                return loose
    return fit


def without_ties(config: Any) -> Any:
    """A copy of the config with its word embeddings untied."""
    loose = copy.deepcopy(config)
    if getattr(loose, "tie_word_embeddings", False):
        loose.tie_word_embeddings = False
    return loose


def _refuse_twice(names: Mapping[str, str], where: str) -> None:
    first: dict[str, str] = {}
    for stored, target in names.items():
        if target in first:
            raise InputError(
                f"{where}: tensor {stored} and another one both stand for {target}; keep one of "
                "them"
            )
        first[target] = stored


def _unused(fit: _Fit, shapes: Shapes, where: str) -> dict[str, tuple[str, Reason]]:
    """Why each tensor that is left over is not used; InputError for one inside the body."""
    found = {
        stored: (name, Reason.COMPUTED)
        for stored, name in fit.leftover.items()
        if is_computed(name)
    }
    others = {stored: name for stored, name in fit.leftover.items() if stored not in found}
    if not others:
        return found
    _refuse_twice(others, where)
    _refuse_body(fit.config, tuple(others.values()), where)
    anatomy = heads_anatomy(
        fit.config, {name: tuple(shapes[stored]) for stored, name in others.items()}
    )
    known = {tensor.name for tensor in anatomy.tensors}
    return found | {
        stored: (name, Reason.HEAD if name in known else Reason.UNKNOWN)
        for stored, name in others.items()
    }


def is_computed(name: str) -> bool:
    """Whether a tensor of that name is one that classes compute for themselves."""
    return any(re.fullmatch(pattern, name) for pattern in SUPERFLUOUS)


def _refuse_body(config: Any, leftover: Sequence[str], where: str) -> None:
    anatomy = describe(config)
    others = tuple(siblings(config, described_classes(config.model_type), describe))
    prefix, parts = base_prefix(anatomy, others[0]), body_parts(anatomy, others)
    inside = [name for name in leftover if name.removeprefix(prefix).partition(".")[0] in parts]
    if inside:
        raise InputError(
            f"{where}: tensor {inside[0]} has no place in {anatomy.architecture} ({len(inside)} in "
            f"all); {REMEDY}"
        )


def _said(placement: Placement) -> tuple[str, ...]:
    names = [name for name, reason in placement.unused.values() if reason != Reason.COMPUTED]
    if not names:
        return ()
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return (
        f"opened as {placement.config.architectures[0]}, which does not use "
        f"{', '.join(names[:4])}{more}",
    )
