"""The tables and figures of signed permutations. A new one is a module and a line here."""

from __future__ import annotations

from normgauge.render.declared import Drawing
from normgauge.render.signed_permutation.alignments import alignment_stability, cycles
from normgauge.render.signed_permutation.carried_artifacts import carried
from normgauge.render.signed_permutation.group_boundary import (
    group_boundary,
    group_boundary_figure,
)
from normgauge.render.signed_permutation.name_audit import name_audit
from normgauge.render.signed_permutation.recovered_gauges import probe_budget, recovered_gauges

DRAWINGS = {
    "group_boundary": Drawing("group_boundary", group_boundary),
    "group_boundary_figure": Drawing("group_boundary", group_boundary_figure),
    "recovered_gauges": Drawing("recovered_gauges", recovered_gauges),
    "probe_budget": Drawing("probe_budget", probe_budget),
    "alignment_stability": Drawing("alignment_stability", alignment_stability),
    "alignment_cycles": Drawing("alignment_cycles", cycles),
    "name_audit": Drawing("name_audit", name_audit),
    "carried_artifacts": Drawing("carried_artifacts", carried),
}
