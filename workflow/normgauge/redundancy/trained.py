"""A small model at trained weights: the Jacobian's nullity there, and the Hessian of the loss
along the symmetries and off them.

Along a symmetry's orbit the loss is constant, so that t^T H t + g^T c = 0 with t the tangent, c the
orbit's second derivative, H the Hessian and g the gradient of the loss: at a minimum t^T H t = 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.redundancy.family import Kind, Symmetry
from normgauge.redundancy.jacobian import STEP, count_parameters, parameter_names, tangents
from normgauge.redundancy.measure import measured, random_checkpoint
from normgauge.redundancy.readers import Tensors, stored
from normgauge.redundancy.symmetries import symmetries

SEQUENCES, LENGTH = 64, 8
ITERATIONS = 100  # of L-BFGS
OFF = 64  # random directions off the symmetries


def trained_rows(name: str, config: Any, seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A row of schema `redundancy_jacobian` and rows of `redundancy_hessian` of a small causal
    language model, trained here on sequences of a random Markov chain. Raises InputError for a
    model whose symmetries are not derived.
    """
    anatomy = describe(config)
    found = symmetries(anatomy)
    ids = chain(config.vocab_size, seed)
    start = random_checkpoint(config, seed)
    checkpoint, losses = trained(start, anatomy, ids)
    tensors = stored(anatomy, checkpoint.tensors)
    gradient, hessian = derivatives(checkpoint, anatomy, ids)
    largest = float(np.abs(np.linalg.eigvalsh(hessian)).max())
    record = {
        "architecture": f"{name} trained",
        "loss_before": losses[0],
        "loss": losses[1],
        "gradient": float(np.linalg.norm(gradient)),
        "largest_eigenvalue": largest,
        "mean_eigenvalue": float(np.trace(hessian)) / len(hessian) / largest,
    }
    rows = []
    for kind in dict.fromkeys(each.kind for each in found):
        members = [each for each in found if each.kind == kind]
        rows.append(record | along(anatomy, tensors, kind, members, gradient, hessian, largest))
    every = tangents(anatomy, tensors, found)
    rows.append(record | off(every, hessian, largest, seed))
    return measured(f"{name} trained", checkpoint, found, seed), rows


def chain(vocabulary: int, seed: int) -> torch.Tensor:
    """int64 (sequences, length): of a Markov chain whose transitions are drawn."""
    generator = np.random.default_rng(seed)
    shares = generator.dirichlet(np.full(vocabulary, 0.2), vocabulary)
    ids = generator.integers(vocabulary, size=(SEQUENCES, 1))
    for _ in range(LENGTH - 1):
        following = [generator.choice(vocabulary, p=shares[last]) for last in ids[:, -1]]
        ids = np.column_stack([ids, following])
    return torch.from_numpy(ids)


def loss_of(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Mean nats per next token."""
    logits = model(input_ids=ids).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def trained(
    checkpoint: Checkpoint, anatomy: Anatomy, ids: torch.Tensor, iterations: int = ITERATIONS
) -> tuple[Checkpoint, tuple[float, float]]:
    """The checkpoint after L-BFGS on all sequences at once, float64, and the losses before and
    after.
    """
    model = build_model(checkpoint, "float64")
    parameters = _parameters(model, anatomy)
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=iterations,
        tolerance_grad=1e-10,
        tolerance_change=0.0,
        history_size=50,
        line_search_fn="strong_wolfe",
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, ids)
        loss.backward()
        return loss

    before = float(loss_of(model, ids).detach())
    optimizer.step(closure)
    names = parameter_names(anatomy)
    tensors = {name: value.detach().clone() for name, value in zip(names, parameters, strict=True)}
    moved = Checkpoint(checkpoint.config, tensors, checkpoint.stored, checkpoint.files)
    return moved, (before, float(loss_of(model, ids).detach()))


def _parameters(model: torch.nn.Module, anatomy: Anatomy) -> list[torch.Tensor]:
    return [model.get_parameter(name).requires_grad_(True) for name in parameter_names(anatomy)]


def derivatives(
    checkpoint: Checkpoint, anatomy: Anatomy, ids: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """(gradient (parameters,), Hessian (parameters, parameters)) of the loss, in the order of
    `parameter_names`.
    """
    model = build_model(checkpoint, "float64")
    parameters = _parameters(model, anatomy)
    first = torch.autograd.grad(loss_of(model, ids), parameters, create_graph=True)
    flat = torch.cat([part.flatten() for part in first])
    size = count_parameters(anatomy)
    rows = []
    for part in torch.eye(size, dtype=torch.float64).split(128):
        second = torch.autograd.grad(
            flat, parameters, part, retain_graph=True, is_grads_batched=True, allow_unused=True
        )
        filled = [
            torch.zeros(len(part), value.numel(), dtype=torch.float64)
            if found is None
            else found.reshape(len(part), -1)
            for found, value in zip(second, parameters, strict=True)
        ]
        rows.append(torch.cat(filled, 1))
    matrix = torch.cat(rows).numpy()
    return flat.detach().numpy(), (matrix + matrix.T) / 2


def along(
    anatomy: Anatomy,
    tensors: Tensors,
    kind: Kind,
    members: Sequence[Symmetry],
    gradient: np.ndarray,
    hessian: np.ndarray,
    largest: float,
) -> dict[str, Any]:
    """What the Hessian is along a family's unit tangents, over its largest eigenvalue."""
    forms, orbits = [], []
    for symmetry in members:
        for coordinate in STEP * np.eye(symmetry.dimension):
            ends = [
                _flat(anatomy, symmetry.act(tensors, sign * coordinate)) for sign in (1.0, -1.0)
            ]
            tangent = (ends[0] - ends[1]) / (2 * STEP)
            curve = (ends[0] + ends[1] - 2 * _flat(anatomy, tensors)) / STEP**2
            square = float(tangent @ tangent)
            forms.append(float(tangent @ hessian @ tangent) / square)
            orbits.append(float(gradient @ curve) / square)
    return {
        "direction": str(kind),
        "directions": len(forms),
        "curvature": float(np.abs(forms).max()) / largest,
        "orbit": float(np.abs(np.add(forms, orbits)).max()) / largest,
        "symmetric": True,
    }


def off(every: np.ndarray, hessian: np.ndarray, largest: float, seed: int) -> dict[str, Any]:
    """The same along random unit vectors at right angles to all tangents, (parameters,
    directions): the least of them.
    """
    basis = np.linalg.qr(every)[0]
    drawn = np.random.default_rng(seed).standard_normal((len(every), OFF))
    drawn -= basis @ (basis.T @ drawn)
    drawn /= np.linalg.norm(drawn, axis=0)
    forms = np.abs(np.einsum("pd,pq,qd->d", drawn, hessian, drawn)) / largest
    return {
        "direction": "off the symmetries",
        "directions": OFF,
        "curvature": float(forms.min()),
        "orbit": float(forms.min()),
        "symmetric": False,
    }


def _flat(anatomy: Anatomy, tensors: Mapping[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([tensors[name].numpy().ravel() for name in parameter_names(anatomy)])
