"""The claimed symmetry, applied as it is claimed: a rotation that fixes the vector of ones, on
everything but the norms' gains and biases.

The claim is a review's to test: one block of width 8, heads of 4, 16 feed-forward units, random
weights, 100 sequences of 4 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy, NormKind, SpaceKind
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.configuration import parse_config
from normgauge.checkpoints.opening import Checkpoint
from normgauge.gauge.admissible import gauge_spaces
from normgauge.gauge.equivalence import Deviation, deviation
from normgauge.gauge.groups import Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_element
from normgauge.gauge.transform import transform_unchecked
from normgauge.redundancy.family import Kind
from normgauge.redundancy.measure import random_checkpoint, with_norms
from normgauge.redundancy.readers import Mutable, Tensors, add_to_matrix, matrix_in, stored
from normgauge.redundancy.skip_rotations import result_row, skip_rows
from normgauge.redundancy.streams import affine_distance, residual_rotation, rotation_distance
from normgauge.redundancy.symmetries import symmetries

WIDTH, HEADS, UNITS, VOCABULARY, SEQUENCES, LENGTH = 8, 2, 16, 32, 100, 4

_TOKENS = {
    "vocab_size": VOCABULARY,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_SHAPE = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "intermediate_size": UNITS,
    **_TOKENS,
}
_GPT2 = {
    "model_type": "gpt2",
    "n_embd": WIDTH,
    "n_layer": 1,
    "n_head": HEADS,
    "n_inner": UNITS,
    "activation_function": "relu",
    **_TOKENS,
}
BLOCKS: dict[str, dict[str, Any]] = {
    "pre-norm": {**_GPT2, "architectures": ["GPT2Model"]},
    "post-norm": {
        "model_type": "bert",
        **_SHAPE,
        "hidden_act": "relu",
        "architectures": ["BertModel"],
    },
    "pre-norm, RMSNorm": {"model_type": "llama", **_SHAPE, "architectures": ["LlamaModel"]},
}
"""The blocks that are tested, by name: the keys of their configs."""
_UNTIED = {**_GPT2, "tie_word_embeddings": False, "architectures": ["GPT2LMHeadModel"]}


def falsifier_rows(seed: int) -> list[dict[str, Any]]:
    """Rows of schema `redundancy_falsifier`: the blocks, single norms, and the rotation with the
    gains moved out of its way.
    """
    rows = []
    for name, keys in BLOCKS.items():
        for affine in (True, False):
            for printed in (False, True):
                rows.append(_row(name, parse_config(keys), affine, printed, seed))
    rows += [_as_vectors(name, parse_config(keys), seed) for name, keys in BLOCKS.items()]
    rows += [*_single_norms(seed), _compensated(seed), *skip_rows(seed)]
    return rows


def _row(name: str, config: Any, affine: bool, printed: bool, seed: int) -> dict[str, Any]:
    anatomy = describe(config)
    checkpoint = with_norms(anatomy, random_checkpoint(config, seed), affine)
    rotation = residual_rotation(
        WIDTH, anatomy.norm_kind == NormKind.LAYER_NORM, _coordinates(seed)
    )
    gauge = Gauge({anatomy.primary_stack.space: rotation, **_head_maps(anatomy, seed)})
    moved = claimed_transformation(anatomy, checkpoint.tensors, gauge, printed)
    twice = (
        float(np.linalg.norm(rotation.matrix - rotation.matrix.T)) / WIDTH**0.5 if printed else 0.0
    )
    return result_row(
        test="output of one block",
        architecture=name,
        norm_kind=str(anatomy.norm_kind),
        gain="random" if affine else "one",
        value_rule="g, as printed" if printed else "inverse of g",
        found=_difference(checkpoint, moved, anatomy, gauge, seed),
        predicted=max(twice, rotation_distance(anatomy, checkpoint.tensors, rotation)),
    )


def _coordinates(seed: int) -> np.ndarray:
    """Coordinates of a rotation far from the identity, more than any group here needs."""
    return np.random.default_rng(seed).standard_normal(WIDTH * WIDTH)


def _as_vectors(name: str, config: Any, seed: int) -> dict[str, Any]:
    """The same rotation with gains and biases of norms rotated as the vectors that they are."""
    anatomy = describe(config)
    checkpoint = random_checkpoint(config, seed)
    space = anatomy.primary_stack.space
    rotation = residual_rotation(
        WIDTH, anatomy.norm_kind == NormKind.LAYER_NORM, _coordinates(seed)
    )
    gauge = Gauge({space: rotation, **_head_maps(anatomy, seed)})
    moved = claimed_transformation(anatomy, checkpoint.tensors, gauge, printed=False)
    for norm in anatomy.norms:
        for value in (norm.gain, norm.bias):
            if value:
                moved[value] = rotation.apply(checkpoint.tensors[value], 0)
    return result_row(
        test="gains and biases rotated as vectors",
        architecture=name,
        norm_kind=str(anatomy.norm_kind),
        gain="random",
        value_rule="inverse of g",
        found=_difference(checkpoint, moved, anatomy, gauge, seed),
        predicted=rotation_distance(anatomy, checkpoint.tensors, rotation),
    )


def _head_maps(anatomy: Anatomy, seed: int) -> dict[str, Any]:
    return {
        name: random_element(anatomy, name, seed)
        for name in gauge_spaces(anatomy)
        if name.endswith("attention")
    }


def claimed_transformation(
    anatomy: Anatomy, tensors: Tensors, gauge: Gauge, printed: bool
) -> Mutable:
    """Everything moved by the gauge, gains and biases of norms untouched; the value maps by g
    instead of its inverse where `printed`.
    """
    moved = dict(transform_unchecked(anatomy, tensors, gauge))
    for norm in anatomy.norms:
        for name in (norm.gain, norm.bias):
            if name:
                moved[name] = tensors[name]
    for item in anatomy.maps if printed else ():
        if anatomy.space(item.writes).kind == SpaceKind.VALUE:
            rotation = gauge.elements[item.reads]
            assert isinstance(rotation, Orthogonal)
            matrix = matrix_in(anatomy, moved, item)
            twice = torch.tensor(rotation.matrix @ rotation.matrix)
            add_to_matrix(anatomy, moved, item, matrix @ twice.T - matrix)
    return moved


def _difference(
    before: Checkpoint, moved: Tensors, anatomy: Anatomy, gauge: Gauge, seed: int
) -> Deviation:
    ids = torch.from_numpy(np.random.default_rng(seed).integers(0, VOCABULARY, (SEQUENCES, LENGTH)))
    after = Checkpoint(before.config, moved, before.stored, before.files)
    return deviation(
        build_model(before, "float64"),
        build_model(after, "float64"),
        anatomy,
        gauge,
        [{"input_ids": ids}],
    )


def _single_norms(seed: int) -> Iterator[dict[str, Any]]:
    """N(g x) against g N(x) for one token."""
    generator = torch.Generator().manual_seed(seed)
    token, gain, bias = (
        torch.randn(WIDTH, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    ones, zeros = torch.ones_like(gain), torch.zeros_like(bias)
    for kind in NormKind:
        turn = residual_rotation(WIDTH, kind == NormKind.LAYER_NORM, _coordinates(seed))
        rotation = torch.tensor(turn.matrix)
        for affine in (True, False):
            scale, shift = (gain, bias) if affine else (ones, zeros)

            def norm(
                value: torch.Tensor,
                kind: NormKind = kind,
                scale: torch.Tensor = scale,
                shift: torch.Tensor = shift,
            ) -> torch.Tensor:
                if kind == NormKind.RMS_NORM:
                    return torch.nn.functional.rms_norm(value, (WIDTH,), scale)
                return torch.nn.functional.layer_norm(value, (WIDTH,), scale, shift)

            expected = norm(token) @ rotation
            difference = float((norm(token @ rotation) - expected).abs().max())
            found = Deviation(difference, difference / float(expected.abs().max()))
            predicted = affine_distance(
                turn, scale.numpy(), shift.numpy() if kind == NormKind.LAYER_NORM else None
            )
            constants = "random" if affine else "one"
            yield result_row(
                "one token through one norm",
                "norm alone",
                str(kind),
                constants,
                "none",
                found,
                predicted,
            )


def _compensated(seed: int) -> dict[str, Any]:
    """The same rotation of the pre-norm block under an untied readout, its gains moved into the
    maps, and moved back after it.
    """
    config = parse_config(_UNTIED)
    anatomy = describe(config)
    checkpoint = random_checkpoint(config, seed)
    rotation = next(symmetry for symmetry in symmetries(anatomy) if symmetry.kind == Kind.ROTATION)
    moved = rotation.act(
        stored(anatomy, checkpoint.tensors), _coordinates(seed)[: rotation.dimension]
    )
    found = _difference(checkpoint, moved, anatomy, Gauge({}), seed)
    test, kind = "gains carried around the rotation", str(anatomy.norm_kind)
    return result_row(test, "pre-norm, untied", kind, "random", "inverse of g", found, 0.0)
