"""The tables and figures of exact recovery. A new one is a module and a line here."""

from __future__ import annotations

from normgauge.render.declared import Drawing
from normgauge.render.exact_recovery.calls import calls
from normgauge.render.exact_recovery.checks import checks
from normgauge.render.exact_recovery.margins import gains, trend
from normgauge.render.exact_recovery.minimum_norm import minimum_norm
from normgauge.render.exact_recovery.null_calibration import calibration
from normgauge.render.exact_recovery.recovered_share import share
from normgauge.render.exact_recovery.recovery_map import recovery_map

DRAWINGS = {
    "exact_recovery_map": Drawing("exact_recovery_map", recovery_map),
    "exact_recovery_null": Drawing("exact_recovery_null", calibration),
    "exact_recovery": Drawing("exact_recovery", share),
    "exact_recovery_checks": Drawing("exact_recovery", checks),
    "exact_recovery_margins": Drawing("exact_recovery_margins", trend),
    "exact_recovery_minimum_norm": Drawing("exact_recovery_minimum_norm", minimum_norm),
    "exact_recovery_calls": Drawing("exact_recovery_calls", calls),
    "exact_recovery_columns": Drawing("exact_recovery_columns", gains),
}
