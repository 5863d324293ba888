"""Elements of the groups that act on one space: monomial matrices, orthogonal matrices, and the
maps of one attention layer.

Every element is immutable. `Monomial`, `Orthogonal` and `HeadMap` act along one axis of a tensor
(`apply`); they know `compose` (this first, then the other), `inverse`, `dual` (the inverse
transpose, by which what reads the space moves) and `permutation` (what is left of them on a norm's
gain). An `AttentionGauge` acts through four head maps, of queries, keys, values and the output
projection's input, and knows `compose` and `inverse`.
"""

from __future__ import annotations

from normgauge.gauge.head_maps import AttentionGauge, HeadMap
from normgauge.gauge.monomial import Monomial, compose_all
from normgauge.gauge.orthogonal import Orthogonal

__all__ = ["AttentionGauge", "Element", "HeadMap", "Monomial", "Orthogonal", "compose_all"]

Element = Monomial | Orthogonal | AttentionGauge
