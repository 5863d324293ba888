"""Short probes: the first positions of calibration sequences."""

from __future__ import annotations

from collections.abc import Iterable

from normgauge.calibration.batches import Batch


def shortened(batches: Iterable[Batch], length: int) -> list[Batch]:
    """Batches whose token grids (ids, masks, types: everything that is not floating point) end after `length` positions.

    Features of speech and pictures are kept whole: their models have no other length.
    """

    def cut(value):
        return value if value is None or value.is_floating_point() or value.ndim < 2 else value[:, :length]

    return [
        Batch({name: cut(value) for name, value in batch.inputs.items()}, {name: cut(value) for name, value in batch.masks.items()})
        for batch in batches
    ]
