"""The figures of one pair of checkpoints. A new one is a module and a line here."""

from __future__ import annotations

from normgauge.render.checkpoint_comparison.change_map import change_map
from normgauge.render.checkpoint_comparison.head_grid import head_grid
from normgauge.render.checkpoint_comparison.null_plots import null_plots
from normgauge.render.declared import Drawing

DRAWINGS = {
    "checkpoint_comparison_map": Drawing("checkpoint_comparison_inventory", change_map, True),
    "checkpoint_comparison_heads": Drawing("checkpoint_comparison_kernels", head_grid, True),
    "checkpoint_comparison_nulls": Drawing("checkpoint_comparison_nulls", null_plots, True),
}
