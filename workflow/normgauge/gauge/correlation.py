"""Cross-correlation of two models' activations on the same samples, streamed: chunks in, one d x d
matrix held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from normgauge.anatomy.structure import Site
from normgauge.calibration.batches import Batch
from normgauge.capture.hooks import body_of, hooked, placed
from normgauge.errors import InputError

BLOCK = 256  # rows whose sums are taken at once
FEWEST = 4  # samples below which a correlation says nothing
CONSTANT = 8 * float(torch.finfo(torch.float32).eps)
"""A coordinate whose standard deviation is below this share of its root mean square is constant:
rounding alone may have moved it.
"""


class CrossCorrelation:
    """Accumulates paired chunks of `source` and `target` activations, float32 or float64 (m, d).

    Both are shifted by their first chunk's mean before the product, so that taking the mean off at
    the end does not cancel.
    """

    def __init__(self, d: int) -> None:
        self.d, self.n = d, 0
        self._shifts: tuple[torch.Tensor, torch.Tensor] | None = None
        self._product: torch.Tensor | None = None
        self._centred = (torch.empty(0, d), torch.empty(0, d))
        self._sums = np.zeros((2, d))
        self._squares = np.zeros((2, d))

    def update(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Add one chunk of each. Raises InputError when their shapes differ, are not (m, d), or a
        value is not finite.
        """
        if source.shape != target.shape or source.ndim != 2 or source.shape[1] != self.d:
            raise InputError(
                f"activations of shapes {list(source.shape)} and {list(target.shape)}, expected "
                f"the same samples of {self.d} coordinates "
                f"from both models; use one tokenizer and one set of probes"
            )
        pair = [
            value if value.dtype in (torch.float32, torch.float64) else value.float()
            for value in (source, target)
        ]
        if not len(source):
            return
        if self._shifts is None:
            self._shifts = (pair[0].mean(0), pair[1].mean(0))
            self._product = torch.zeros(
                (self.d, self.d), dtype=torch.promote_types(pair[0].dtype, pair[1].dtype)
            )
        assert self._product is not None
        if len(source) > len(self._centred[0]):
            self._centred = (
                torch.empty(source.shape, dtype=self._product.dtype),
                torch.empty(source.shape, dtype=self._product.dtype),
            )
        for number, (side, value) in enumerate(zip(("source", "target"), pair, strict=True)):
            self._add_scatter(number, side, value)
        first, second = (rows[: len(source)] for rows in self._centred)
        self._product.addmm_(first.T, second)
        self.n += len(source)

    def _add_scatter(self, number: int, side: str, value: torch.Tensor) -> None:
        """Shift one model's chunk into the buffer for the product and add its sums and squares, in
        blocks that stay in the cache.
        """
        assert self._shifts is not None
        for block, rows in zip(
            value.split(BLOCK), self._centred[number].split(BLOCK), strict=False
        ):
            rows = torch.sub(block, self._shifts[number], out=rows[: len(block)])
            total = rows.sum(0).double().numpy()
            if not np.isfinite(total).all():
                coordinate = int(np.flatnonzero(~np.isfinite(total))[0])
                raise InputError(
                    f"activations of the {side} model hold NaN or infinity (coordinate "
                    f"{coordinate}); check its weights"
                )
            self._sums[number] += total
            self._squares[number] += rows.square().sum(0).double().numpy()

    def constant(self) -> tuple[np.ndarray, np.ndarray]:
        """bool (d,) each: source and target coordinates whose variance is zero up to rounding."""
        if self.n < FEWEST or self._shifts is None:
            raise InputError(f"{self.n} samples, expected at least {FEWEST}; give more probes")
        variance = self._squares / self.n - (self._sums / self.n) ** 2
        mean = np.stack([shift.double().numpy() for shift in self._shifts]) + self._sums / self.n
        found = variance <= CONSTANT**2 * (variance + mean**2)
        return found[0], found[1]

    def matrix(self) -> np.ndarray:
        """float (d, d): the centred, normalised correlation of source coordinate i with target
        coordinate j; 0 where one is constant.
        """
        constant = self.constant()
        assert self._product is not None
        matrix = self._product.numpy().copy()
        matrix -= np.outer(self._sums[0], self._sums[1] / self.n).astype(matrix.dtype)
        scatter = self._squares - self._sums**2 / self.n
        scales = [
            np.where(flat, 0, 1 / np.sqrt(np.where(flat, 1, spread)))
            for flat, spread in zip(constant, scatter, strict=True)
        ]
        matrix *= scales[0].astype(matrix.dtype)[:, None]
        matrix *= scales[1].astype(matrix.dtype)
        return matrix


class _Latest:
    """A receiver of activations that keeps the last forward pass's."""

    def __init__(self) -> None:
        self.rows = torch.empty(0)

    def update(self, rows: torch.Tensor) -> None:
        self.rows = rows.detach().cpu()


def run_site_activations(
    model: torch.nn.Module, sites: Sequence[Site], batches: Iterable[Batch]
) -> Iterable[dict[str, torch.Tensor]]:
    """Per batch, the activations (rows, width) of every site of one model, by site id."""
    kept = {site.id: _Latest() for site in sites}
    body, parameter = body_of(model), next(model.parameters())
    with hooked(model, sites, kept) as state:
        for batch in batches:
            with torch.inference_mode():
                state.begin(batch.masks)
                body(**{key: placed(value, parameter) for key, value in batch.inputs.items()})
            state.check_all_fired()
            yield {name: latest.rows for name, latest in kept.items()}


def correlate(source: torch.Tensor, target: torch.Tensor) -> CrossCorrelation:
    """The correlation of two whole sets of activations, (m, d) each."""
    found = CrossCorrelation(source.shape[-1])
    found.update(source, target)
    return found
