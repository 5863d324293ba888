"""What an optimiser and a loss leave of a symmetry, measured on one softmax layer: the ground of
the published table 6 (arXiv 2606.19491, C.1).

The table says in which training an observable means something. Its crosses and triangles have two
causes, and both can be computed. A softmax does not change when one vector is added to all rows of
its weight, so the gradient of the cross-entropy has no part along such shifts: gradient descent
never moves along them, Adam's division by each coordinate's own scale does. And for the same reason
the Fisher matrix over p classes has rank p - 1 at most, so its smallest eigenvalue is 0 whatever is
learned.
"""

from __future__ import annotations

from typing import Any

import torch

Rows = list[dict[str, Any]]
CLASSES, WIDTH, SAMPLES, STEPS = 7, 12, 256, 200
LEARNING_RATES = {"SGD": 0.5, "Adam": 0.02}

PUBLISHED = {
    "static smallest singular value": ("valid", "valid", "valid", "valid"),
    "drops along a trajectory": ("valid", "valid", "valid", "valid"),
    "rate of the smallest singular value": ("partial", "conditional", "partial", "valid"),
    "rate of a fixed direction's Fisher form": ("invalid", "valid", "partial", "valid"),
    "smallest eigenvalue of the Fisher matrix": ("invalid", "invalid", "invalid", "not applicable"),
    "smallest nonzero eigenvalue of it": ("partial", "conditional", "partial", "valid"),
    "drops of the Fisher spectrum": ("valid", "valid", "valid", "valid"),
}
"""Published verdict on each observable under Adam with cross-entropy, SGD with it, Adam with mean
squared error, SGD with it; conditional: valid where the run reaches the singular minimum.
"""
CONDITIONS = (
    ("Adam", "cross-entropy"),
    ("SGD", "cross-entropy"),
    ("Adam", "squared error"),
    ("SGD", "squared error"),
)


def applicability_rows(seed: int) -> Rows:
    """Rows of schema `table6`: one per observable, optimiser and loss, with the published verdict
    and what was measured of its ground under this optimiser and loss.

    shift_share: how much of the weights' movement over the training lies along the shifts common to
    all classes, the length over the whole length. fisher_smallest: smallest eigenvalue of the
    Fisher matrix of the logits over the largest, at the end; fisher_next that of the next one.
    """
    rows = []
    for column, (optimiser, loss) in enumerate(CONDITIONS):
        share, floor, first, second = _trained(optimiser, loss, seed)
        rows += [
            {
                "observable": observable,
                "optimiser": optimiser,
                "loss": loss,
                "published": verdicts[column],
                "steps": STEPS,
                "n": SAMPLES,
                "shift_share": share,
                "floor": floor,
                "fisher_smallest": first,
                "fisher_next": second,
            }
            for observable, verdicts in PUBLISHED.items()
        ]
    return rows


def _trained(optimiser: str, loss: str, seed: int) -> tuple[float, float, float, float]:
    """(share of the movement along common shifts, its rounding, smallest and next eigenvalue of the
    Fisher matrix of the outputs over the largest).
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    weight = torch.randn(CLASSES, WIDTH, generator=generator, dtype=torch.float64)
    start = weight.clone()
    weight.requires_grad_(True)
    chosen = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}[optimiser]
    stepper = chosen([weight], lr=LEARNING_RATES[optimiser])
    targets = torch.nn.functional.one_hot(labels, CLASSES).double()
    for _ in range(STEPS):
        outputs = inputs @ weight.T
        value = (
            torch.nn.functional.cross_entropy(outputs, labels)
            if loss == "cross-entropy"
            else (outputs - targets).pow(2).mean()
        )
        stepper.zero_grad()
        value.backward()
        stepper.step()
    moved = weight.detach() - start
    common = moved.mean(0) * CLASSES**0.5
    share = float(common.norm() / moved.norm())
    eigenvalues = torch.linalg.eigvalsh(_fisher(inputs @ weight.detach().T, loss))
    return (
        share,
        STEPS * torch.finfo(torch.float64).eps,
        float((eigenvalues[0] / eigenvalues[-1]).abs()),
        float(eigenvalues[1] / eigenvalues[-1]),
    )


def _fisher(outputs: torch.Tensor, loss: str) -> torch.Tensor:
    """(classes, classes) mean Fisher matrix with respect to the outputs: diag(p) - p p^T of a
    softmax, the identity of a Gaussian of fixed width.
    """
    if loss != "cross-entropy":
        return torch.eye(CLASSES, dtype=torch.float64)
    p = outputs.softmax(1)
    return torch.diag(p.mean(0)) - p.T @ p / len(p)
