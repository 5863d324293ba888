"""The tables and figures of redundancy. A new one is a module and a line here."""

from __future__ import annotations

from normgauge.render.declared import Drawing
from normgauge.render.redundancy.bars import jacobian, symmetries
from normgauge.render.redundancy.counts import counts
from normgauge.render.redundancy.trials import checks, falsifier

DRAWINGS = {
    "redundancy_counts": Drawing("redundancy_counts", counts),
    "redundancy_symmetries": Drawing("redundancy_symmetries", symmetries),
    "redundancy_jacobian": Drawing("redundancy_jacobian", jacobian),
    "redundancy_falsifier": Drawing("redundancy_falsifier", falsifier),
    "redundancy_checks": Drawing("redundancy_checks", checks),
}
