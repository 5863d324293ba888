"""The tables and figures of what signed permutations are on their own. A new one is a line here."""

from __future__ import annotations

from normgauge.render.declared import Drawing
from normgauge.render.discrete_laws.figures import minimal_example, scaffold
from normgauge.render.discrete_laws.typeset import artifact_rules, greedy, weight_rules

DRAWINGS = {
    "artifact_rules": Drawing("transport_rules", artifact_rules),
    "weight_rules": Drawing("transport_rules", weight_rules),
    "minimal_example": Drawing("minimal_example", minimal_example),
    "greedy_assignment": Drawing("greedy_assignment", greedy),
    "scaffold": Drawing("scaffold", scaffold),
}
