"""The standard error of a statistic from its values without each group of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def standard_error(
    value: float | None,
    replicates: Sequence[float],
    samples: Sequence[int],
    resolution: float = 0.0,
) -> float | None:
    """Delete-a-group jackknife for groups of any sizes.

    value: of all samples. replicates: without each group. samples: of each group. resolution: the
    rounding of one replicate. None without a value, with fewer than two groups or an empty one,
    where a replicate is missing, and where the error would be rounding. For G groups of one size it
    is sqrt((G - 1) / G sum (replicate - mean of the replicates)^2).

    Source: Busing, Meijer and van der Leeden 1999, "Delete-m jackknife for unequal m", equation 7;
    Efron and Stein 1981, "The jackknife estimate of variance": on average not too small.
    """
    left = np.asarray(replicates, dtype=float)
    groups = len(samples)
    if (
        value is None
        or groups < 2
        or min(samples) <= 0
        or left.size != groups
        or not np.isfinite(left).all()
    ):
        return None
    ratio = sum(samples) / np.asarray(samples, dtype=float)
    pseudo = ratio * value - (ratio - 1) * left
    centre = (pseudo / ratio).sum()
    error = float(np.sqrt(((pseudo - centre) ** 2 / (ratio - 1)).mean()))
    return error if error > (groups - 1) ** 0.5 * resolution else None
