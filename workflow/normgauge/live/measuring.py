"""The fingerprint of a model in memory, by the functions of the workflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy
from normgauge.calibration.direct import Inputs, default_settings, drawn_inputs, given_inputs
from normgauge.checkpoints.manifest import stored_precision
from normgauge.checkpoints.opening import Checkpoint
from normgauge.checkpoints.skeleton import Skeleton, skeleton
from normgauge.fingerprint.memory import Plan, Source, measure_model
from normgauge.fingerprint.study import Identity, Rows
from normgauge.live.models import Model, checkpoint_of, name_of
from normgauge.schemas.fingerprint import tables

if TYPE_CHECKING:
    import pandas

FORWARD_DTYPES: Mapping[str, Sequence[str]] = {"float32": ("residual", "terminal", "taps")}
NORM_OUTPUTS = ("query_key_value_input", "mlp_up_input")
"""The Schur sites that norms feed; those behind attention and the activation are wide, and cost
several times more.
"""


@dataclass(frozen=True)
class Measured:
    """Rows of the schemas `fingerprint`, `schur` and `stacks`, and what they were measured on."""

    fingerprint: Rows
    schur: Rows
    stacks: Rows
    anatomy: Anatomy
    inputs: Inputs


def fingerprint(
    model: Model,
    batches: Iterable[Any] | None = None,
    *,
    seed: int = 0,
    forward_dtypes: Mapping[str, Sequence[str]] = FORWARD_DTYPES,
    accumulation: str = "cov64",
    jackknife_groups: int = 0,
) -> pandas.DataFrame:
    """The spectrum of a model's activations, one row per site: the columns of `fingerprint` in
    docs/data.md.

    model: a transformers model. It is left as it is: a second one with its weights runs in
    evaluation mode, on the CPU, in each of `forward_dtypes` (float32, float64, bfloat16 or float16
    -> groups of sites: residual, terminal, taps).
    batches: dicts of tensors as a tokenizer returns them, or sequences of token ids; None for
    random tokens drawn from `seed`, ten for each coordinate and at least 2048. More positions than
    coordinates are needed. accumulation: cov64, or tsqr64 for spectra wider than 1e7.
    jackknife_groups: of sequences, left out in turn for the columns `_se`; each costs about one
    more decomposition per site. `attrs["inputs"]` of the frame says what was used. Raises
    InputError for another family, batches that do not fit, and too few positions.

    >>> import transformers, normgauge
    >>> config = transformers.GPT2Config(
    ...     n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=32
    ... )
    >>> frame = normgauge.fingerprint(transformers.GPT2LMHeadModel(config))
    >>> frame[frame.tap == "output"][["site", "n", "d"]].values.tolist()
    [['decoder/block.1/output', 2048, 16], ['decoder/block.2/output', 2048, 16]]
    >>> frame.attrs["inputs"]
    '64 sequences of 32 (random tokens, seed 0)'
    """
    plan = Plan(forward_dtypes, (), accumulation)
    checkpoint = checkpoint_of(model)
    inputs = inputs_of(checkpoint.config, batches, seed, jackknife_groups)
    found = measured(checkpoint, inputs, plan, name_of(model))
    frame = pa.Table.from_pylist(
        found.fingerprint, schema=tables.schemas["fingerprint"]
    ).to_pandas()
    frame.attrs["inputs"] = found.inputs.words
    return frame


def inputs_of(config: Any, batches: Iterable[Any] | None, seed: int = 0, groups: int = 0) -> Inputs:
    """The caller's batches, or random ones that suit the model."""
    if batches is None:
        return drawn_inputs(config, default_settings(config, None, None, seed), groups=groups)
    return given_inputs(config, batches, groups=groups)


def measured(checkpoint: Checkpoint, inputs: Inputs, plan: Plan, label: str) -> Measured:
    """Capture and rows of a checkpoint in memory."""
    anatomy = describe(checkpoint.config)

    def build(forward_dtype: str) -> tuple[Skeleton, Mapping[str, torch.Tensor]]:
        return skeleton(checkpoint, forward_dtype, torch.device("cpu")), checkpoint.tensors

    first = len(next(iter(inputs.batches[0].inputs.values())))
    source = Source(lambda: inputs.batches, len(inputs.batches), inputs.sequences / first)
    rows = measure_model(
        build,
        anatomy,
        identity_of(checkpoint, anatomy, label),
        source,
        plan,
        f"fingerprint {label}",
    )
    return Measured(*rows, anatomy, inputs)


def identity_of(checkpoint: Checkpoint, anatomy: Anatomy, label: str) -> Identity:
    """What the rows say of a checkpoint that no manifest describes."""
    return Identity(
        model=label or anatomy.architecture,
        revision="local",
        family=anatomy.family,
        provenance="local",
        precision=stored_precision(checkpoint.stored, checkpoint.tensors),
        objective=None,
        placement=str(anatomy.placement),
        blocks={stack.name: len(stack.blocks) for stack in anatomy.stacks},
        primary=anatomy.primary_stack.name,
    )
