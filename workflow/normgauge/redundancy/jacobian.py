"""The derivative of a model's outputs by all of its parameters: its rank, and whether the known
symmetries explain what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from normgauge.anatomy.structure import Anatomy
from normgauge.redundancy.family import Symmetry
from normgauge.redundancy.readers import Tensors

HEADLESS = ("last_hidden_state", "pooler_output", "text_embeds", "image_embeds")
AT_ONCE = 256  # rows of the Jacobian per backward pass
SPARE_ROWS = 64  # random combinations of outputs beyond the number of parameters
STEP = 1e-4  # of the central differences along a symmetry; their error is its square
INDEPENDENT = 1e-6  # singular values of unit tangents above this are no error of the differences
# a rank is decided when the smallest singular value that counts is this many times the floor
DECIDED = 1e3


def head_outputs(found: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """What a class returns, as one flat vector: the logits of its heads, else the last hidden
    states and what is pooled from them.
    """
    names = [name for name in found if name.endswith("logits")] or [
        name for name in HEADLESS if found.get(name) is not None
    ]
    return torch.cat([found[name].flatten() for name in names])


def parameter_names(anatomy: Anatomy) -> list[str]:
    """The stored tensors, tied ones once: the order of the columns of a Jacobian, each flattened in
    row-major order.
    """
    return [tensor.name for tensor in anatomy.tensors if tensor.alias_of is None]


def count_parameters(anatomy: Anatomy) -> int:
    """Stored values, tied ones once."""
    return sum(int(np.prod(anatomy.tensor(name).shape)) for name in parameter_names(anatomy))


def output_jacobian(
    model: torch.nn.Module, anatomy: Anatomy, inputs: Mapping[str, torch.Tensor], seed: int
) -> np.ndarray:
    """float64 (rows, parameters): the derivative of random combinations of all outputs, Gaussian
    with the outputs' number as variance^-1.

    There are `SPARE_ROWS` more combinations than parameters, so that their derivative has the rank
    of the full one with probability one, however many outputs there are.
    """
    parameters = [
        model.get_parameter(name).requires_grad_(True) for name in parameter_names(anatomy)
    ]
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            # the padding row acts like any other; autograd alone would leave its derivative out
            module.padding_idx = None
    flat = head_outputs(model(**inputs))
    generator = torch.Generator().manual_seed(seed)
    left = count_parameters(anatomy) + SPARE_ROWS
    rows = []
    while left > 0:
        combinations = (
            torch.randn(min(AT_ONCE, left), len(flat), generator=generator, dtype=flat.dtype)
            / len(flat) ** 0.5
        )
        parts = torch.autograd.grad(
            flat,
            parameters,
            combinations,
            retain_graph=True,
            is_grads_batched=True,
            allow_unused=True,
        )
        shapes = [(len(combinations), parameter.numel()) for parameter in parameters]
        filled = [
            torch.zeros(shape) if part is None else part.reshape(shape)
            for part, shape in zip(parts, shapes, strict=True)
        ]
        rows.append(torch.cat(filled, 1).numpy())
        left -= len(combinations)
    for parameter in parameters:
        parameter.requires_grad_(False)
    return np.concatenate(rows)


@dataclass(frozen=True)
class Rank:
    """How a rank was decided. `floor`: rounding of the largest singular value, max(shape) eps
    sigma_max; what lies at or below it is zero.

    `smallest_nonzero` and `largest_zero` are the two singular values at the gap, over the largest
    one; the latter 0 at full rank.
    """

    rank: int
    floor: float
    smallest_nonzero: float
    largest_zero: float

    @property
    def decided(self) -> bool:
        """Whether the gap leaves no doubt: nothing lies between the floor and many times the
        floor.
        """
        return self.smallest_nonzero >= DECIDED * self.floor


def decide_rank(matrix: np.ndarray) -> Rank:
    """The numerical rank of a matrix with at least as many rows as columns."""
    triangle = np.linalg.qr(matrix, mode="r")
    values = np.linalg.svd(triangle, compute_uv=False)
    values = values / values[0]
    floor = max(matrix.shape) * float(np.finfo(np.float64).eps)
    rank = int((values > floor).sum())
    return Rank(
        rank, floor, float(values[rank - 1]), float(values[rank]) if rank < len(values) else 0.0
    )


def tangents(anatomy: Anatomy, tensors: Tensors, found: Sequence[Symmetry]) -> np.ndarray:
    """float64 (parameters, directions): the derivative of every symmetry at zero along each of its
    coordinates, by central differences, each of length one.
    """
    columns = []
    for symmetry in found:
        for coordinate in STEP * np.eye(symmetry.dimension):
            forward, backward = (
                symmetry.act(tensors, coordinate),
                symmetry.act(tensors, -coordinate),
            )
            columns.append(
                np.concatenate(
                    [
                        (forward[name] - backward[name]).numpy().ravel()
                        for name in parameter_names(anatomy)
                    ]
                )
            )
    matrix = np.array(columns).reshape(-1, count_parameters(anatomy)).T
    return matrix / np.linalg.norm(matrix, axis=0)


def span_dimension(directions: np.ndarray) -> int:
    """Dimension of the span of unit vectors, (parameters, directions)."""
    return int((np.linalg.svd(directions, compute_uv=False) > INDEPENDENT).sum())
