"""The tables and figures of the dead directions. A new one is a module and a line here."""

from __future__ import annotations

from normgauge.render.dead_directions.depth_profiles import figure3
from normgauge.render.dead_directions.fingerprints import table2
from normgauge.render.dead_directions.growth import trained_vs_random
from normgauge.render.dead_directions.schur_profiles import figure6
from normgauge.render.dead_directions.schur_ratio import table1
from normgauge.render.declared import Drawing

DRAWINGS = {
    "table1": Drawing("table1", table1),
    "table2": Drawing("table2", table2),
    "trained_vs_random": Drawing("trained_vs_random", trained_vs_random),
    "figure3": Drawing("figure3", figure3),
    "figure6": Drawing("figure6", figure6),
}
