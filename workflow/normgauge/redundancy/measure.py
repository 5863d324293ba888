"""Small random models: their Jacobian's nullity against the count."""

from __future__ import annotations

from collections.abc import Mapping
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
from normgauge.redundancy.jacobian import (
    count_parameters,
    decide_rank,
    output_jacobian,
    span_dimension,
    tangents,
)
from normgauge.redundancy.readers import stored
from normgauge.redundancy.symmetries import symmetries

WEIGHT_DEVIATION, BIAS_DEVIATION = 0.5, 0.2
# of the Jacobian along unit tangents: a hundred squares of the step of their central differences
LEFT_ALONE = 1e-6
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


def measurement(name: str, config: Any, seed: int) -> dict[str, Any]:
    """A row of schema `redundancy_jacobian`. Raises InputError for a model whose symmetries are not
    derived.
    """
    anatomy = describe(config)
    found = symmetries(anatomy)
    checkpoint = random_checkpoint(config, seed)
    inputs = random_inputs(config, sequences_needed(config, anatomy), seed)
    jacobian = output_jacobian(build_model(checkpoint, "float64"), anatomy, inputs, seed)
    tensors = stored(anatomy, checkpoint.tensors)
    directions = tangents(anatomy, tensors, found)
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
