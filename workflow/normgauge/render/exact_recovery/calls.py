"""How often a value of small margin is wrong, beside what Gaussian noise of the stated size makes
wrong.
"""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy import stats

from normgauge.render.axes import nothing
from normgauge.render.exact_recovery.looks import checkpoints_with_looks
from normgauge.render.page import panel
from normgauge.render.rows import Rows
from normgauge.render.style import GREY

_NOTE = (
    "Values other than zero to which the joint fits, on the outputs of the float64 forward pass, "
    "give a margin below 8. Dots: the share "
    "whose rounding is not the stored value, with its 95 % interval; triangles: none is wrong, "
    "upper end. Steps: expected of Gaussian "
    "noise. Grey: margin 4, from which on a value is claimed."
)
_FLOOR = 1e-6


def calls(rows: Rows) -> Figure:
    """Rate of wrong roundings by bins of the margin. `rows` are of the schema
    exact_recovery_calls.
    """
    found = [
        (name, [row for row in members if row["values"]], color, line)
        for name, members, color, line in checkpoints_with_looks(rows)
    ]
    handles = [
        Line2D([], [], color=color, linestyle=line, linewidth=1.0, label=_counted(name, members))
        for name, members, color, line in found
    ]
    page, axes = panel("Wrong roundings by margin", _NOTE, handles)
    for _, members, color, line in found:
        for row in members:
            middle = (row["low"] + row["high"]) / 2
            interval = stats.binomtest(row["wrong"], row["values"]).proportion_ci(0.95, "exact")
            share = row["wrong"] / row["values"]
            if share:
                axes.plot([middle, middle], [interval.low, interval.high], color=color, lw=0.6)
            axes.plot(
                middle, share or interval.high, "o" if share else "v", color=color, markersize=3
            )
            expected = max(row["expected"] / row["values"], _FLOOR)
            axes.plot([row["low"], row["high"]], [expected, expected], color=color, ls=line, lw=1.0)
    if any(members for _, members, _, _ in found):
        axes.axvline(4, color=GREY, linewidth=0.6, zorder=1)
        axes.set(yscale="log", ylim=(_FLOOR, 1), xlim=(0, 8))
        axes.set(xlabel="margin in the joint fit, noises", ylabel="share of wrong roundings")
        axes.minorticks_off()
    else:
        nothing(axes, "no value has a margin below 8")
    return page.figure


def _counted(name: str, rows: Rows) -> str:
    values, wrong = (sum(row[key] for row in rows) for key in ("values", "wrong"))
    expected = sum(row["expected"] for row in rows)
    return f"{name}: {values:,} values, {wrong:,} wrong, {expected:,.0f} expected"
