"""The change of coordinates that a run starts with, and which is the truth afterwards."""

from __future__ import annotations

import numpy as np

from normgauge.anatomy.structure import Anatomy
from normgauge.gauge.admissible import gauge_spaces
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_gauge


def recorded_gauge(anatomy: Anatomy, seed: int) -> Gauge:
    """The recorded gauge of a seed on streams and feed-forward units, without scales: places and
    signs inside the group of each space.

    Optimizers that look at entries one by one follow signed permutations and no other scales.
    """
    spaces = tuple(name for name in gauge_spaces(anatomy) if not name.endswith("attention"))
    drawn = random_gauge(anatomy, seed, spaces)
    return Gauge(
        {
            name: Monomial(element.target, np.sign(element.factors))
            for name, element in drawn.elements.items()
            if isinstance(element, Monomial)
        }
    )


def truth_of(gauge: Gauge | None, space: str, size: int) -> Monomial:
    """What a recorded gauge does to a space: nothing where there is none."""
    element = gauge.elements.get(space) if gauge else None
    return element if isinstance(element, Monomial) else Monomial.identity(size)
