"""Small models: their Jacobian's nullity against the count, at random weights, with norms that have
no gains, and wherever else a checkpoint is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy
from normgauge.calibration.interfaces import Interface, interface_of
from normgauge.calibration.random_tokens import LENGTH, probes
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.errors import InputError
from normgauge.redundancy.family import Kind, Symmetry
from normgauge.redundancy.jacobian import (
    count_parameters,
    decide_rank,
    output_jacobian,
    parameter_names,
    span_dimension,
    tangents,
)
from normgauge.redundancy.norm_folds import unpaid_kernels
from normgauge.redundancy.readers import stored
from normgauge.redundancy.symmetries import symmetries

WEIGHT_DEVIATION, BIAS_DEVIATION = 0.5, 0.2
# of the Jacobian along unit tangents: a hundred squares of the step of their central differences
LEFT_ALONE = 1e-6
OF_NORMS = (Kind.GAIN, Kind.BIAS, Kind.HEAD_GAIN)  # families that move gains and biases of norms
EXCESS = 4  # numbers that the last norm hands over, on all inputs, per parameter


def random_checkpoint(config: Any, seed: int) -> Checkpoint:
    """The class with random parameters, float64, none of them at a value that could hide a symmetry
    or make one.

    Gains are uniform in [1/2, 3/2]; biases are small beside what the maps give, so that hardly any
    relu is always on or always off.
    """
    anatomy = describe(config)
    gains = {norm.gain: norm.gain_offset for norm in anatomy.norms}
    biases = {item.bias for item in anatomy.maps} | {norm.bias for norm in anatomy.norms}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for tensor in anatomy.tensors:
        if tensor.alias_of is not None:
            continue
        if tensor.name in gains:
            tensors[tensor.name] = (
                0.5
                + torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
                - gains[tensor.name]
            )
        else:
            deviation = BIAS_DEVIATION if tensor.name in biases else WEIGHT_DEVIATION
            tensors[tensor.name] = deviation * torch.randn(
                tensor.shape, generator=generator, dtype=torch.float64
            )
    return Checkpoint(
        config, tensors, dict.fromkeys(tensors, "F64"), (Path(f"random weights of seed {seed}"),)
    )


def random_inputs(config: Any, sequences: int, seed: int) -> Mapping[str, torch.Tensor]:
    """One batch of so many random sequences or recordings."""
    generator = torch.Generator().manual_seed(seed)
    match interface_of(config):
        case Interface.SPEECH:
            frames = torch.randn(
                sequences,
                config.num_mel_bins,
                2 * config.max_source_positions,
                generator=generator,
                dtype=torch.float64,
            )
            ids = torch.randint(
                0, config.vocab_size, (sequences, config.max_target_positions), generator=generator
            )
            return {"input_features": frames, "decoder_input_ids": ids}
        case _:
            batches = list(probes(config, sequences * LENGTH, seed, cover=False))
            return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


def sequences_needed(config: Any, anatomy: Anatomy) -> int:
    """So many that the last norm's outputs hold `EXCESS` numbers per parameter."""
    return -(-EXCESS * count_parameters(anatomy) // (LENGTH * anatomy.primary_stack.width))


def with_norms(anatomy: Anatomy, checkpoint: Checkpoint, affine: bool) -> Checkpoint:
    """The checkpoint, with every gain one and every norm's bias zero unless `affine`."""
    tensors = dict(checkpoint.tensors)
    for norm in anatomy.norms if not affine else ():
        assert norm.gain is not None
        tensors[norm.gain] = torch.full_like(tensors[norm.gain], 1 - norm.gain_offset)
        if norm.bias:
            tensors[norm.bias] = torch.zeros_like(tensors[norm.bias])
    return Checkpoint(checkpoint.config, tensors, checkpoint.stored, checkpoint.files)


def measurement(name: str, config: Any, seed: int) -> dict[str, Any]:
    """A row of schema `redundancy_jacobian`, at random weights. Raises InputError for a model whose
    symmetries are not derived.
    """
    found = symmetries(describe(config))
    return measured(name, random_checkpoint(config, seed), found, seed)


def measurement_without_gains(name: str, config: Any, seed: int) -> dict[str, Any]:
    """The same for a model whose norms have no gains and biases: these stay at one and zero and are
    no parameters. Raises InputError where a readout is tied to the embedding, which then turns with
    the stream in a way that is not derived.
    """
    anatomy = describe(config)
    if anatomy.tied:
        raise InputError(
            f"{name}: its readout is tied, and what norms without gains let through it is not "
            "derived; give a model with a readout of its own"
        )
    found = [each for each in symmetries(anatomy) if each.kind not in OF_NORMS]
    found += unpaid_kernels(anatomy)
    checkpoint = with_norms(anatomy, random_checkpoint(config, seed), False)
    of_norms = {value for norm in anatomy.norms for value in (norm.gain, norm.bias)}
    kept = np.concatenate(
        [
            np.full(int(np.prod(anatomy.tensor(each).shape)), each not in of_norms)
            for each in parameter_names(anatomy)
        ]
    )
    return measured(f"{name} without gains", checkpoint, found, seed, kept)


def measured(
    name: str,
    checkpoint: Checkpoint,
    found: Sequence[Symmetry],
    seed: int,
    kept: np.ndarray | None = None,
) -> dict[str, Any]:
    """A row of schema `redundancy_jacobian`. `kept`: bool (parameters,), those that move; all of
    them without it.
    """
    config = checkpoint.config
    anatomy = describe(config)
    inputs = random_inputs(config, sequences_needed(config, anatomy), seed)
    jacobian = output_jacobian(build_model(checkpoint, "float64"), anatomy, inputs, seed)
    directions = tangents(anatomy, stored(anatomy, checkpoint.tensors), found)
    if kept is not None:
        jacobian, directions = jacobian[:, kept], directions[kept]
    unused = ~jacobian.any(0)
    rank = decide_rank(jacobian)
    nullity = jacobian.shape[1] - rank.rank
    spanned, corrected = span_dimension(directions), sum(each.dimension for each in found)
    violation = float(np.abs(jacobian @ directions).max() / np.abs(jacobian).max())
    explained = span_dimension(
        np.concatenate([directions, np.eye(jacobian.shape[1])[:, unused]], 1)
    )
    return {
        "architecture": name,
        "parameters": jacobian.shape[1],
        "sequences": len(next(iter(inputs.values()))),
        "rows": jacobian.shape[0],
        "rank": rank.rank,
        "nullity": nullity,
        "corrected": corrected,
        "tangent_rank": spanned,
        "unused": int(unused.sum()),
        "explained": explained,
        "smallest_nonzero": rank.smallest_nonzero,
        "largest_zero": rank.largest_zero,
        "floor": rank.floor,
        "decided": rank.decided,
        "violation": violation,
        "agrees": rank.decided
        and nullity == explained
        and spanned == corrected
        and violation <= LEFT_ALONE,
    }
