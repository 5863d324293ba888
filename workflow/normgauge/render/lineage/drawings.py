"""The tables and figures of lineage. A new one is a module and a line here."""

from __future__ import annotations

from normgauge.render.declared import Drawing
from normgauge.render.lineage.evasions import evasions
from normgauge.render.lineage.matrix import matrix
from normgauge.render.lineage.origins import origins

DRAWINGS = {
    "lineage_matrix": Drawing("lineage_pairs", matrix),
    "lineage_evasions": Drawing("lineage_evasions", evasions),
    "lineage_origins": Drawing("lineage_origins", origins),
}
