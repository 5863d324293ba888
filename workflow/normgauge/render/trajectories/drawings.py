"""The figures of trajectories. A new one is a function and a line here."""

from __future__ import annotations

from normgauge.render.declared import Drawing
from normgauge.render.trajectories.averages import averages
from normgauge.render.trajectories.budgets import cycles, endpoint_budget, natural_alignment
from normgauge.render.trajectories.merging import barriers, resumed
from normgauge.render.trajectories.transport import (
    between_runs,
    expected_and_found,
    where_it_breaks,
)

DRAWINGS = {
    "trajectory_transport": Drawing("trajectory_transport", where_it_breaks),
    "transport_trust": Drawing("trajectory_transport", expected_and_found),
    "trajectory_pairs": Drawing("trajectory_pairs", between_runs),
    "trajectory_cycles": Drawing("trajectory_cycles", cycles),
    "endpoint_budget": Drawing("endpoint_budget", endpoint_budget),
    "natural_alignment": Drawing("natural_alignment", natural_alignment),
    "merge_barriers": Drawing("merge_barriers", barriers),
    "aligned_merges": Drawing("aligned_merges", averages),
    "resumed_training": Drawing("resumed_training", resumed),
}
