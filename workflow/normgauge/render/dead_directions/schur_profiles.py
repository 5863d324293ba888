"""Figure 6: the Schur ratio at the query/key/value input, block by block."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normgauge.errors import InputError
from normgauge.render.axes import decades
from normgauge.render.dead_directions.panels import PLACE, Panel, one_arithmetic, small_multiples
from normgauge.render.dead_directions.schur_ratio_rows import SCHUR_TAP, known_delta
from normgauge.render.dead_directions.series import ERRORS, Series, plot_series, series_handles
from normgauge.render.rows import Rows, grouped
from normgauge.render.style import DIRECTION, FORM, GREY

_PREDICTED: dict[str, Any] = {
    "color": "black",
    "linestyle": "none",
    "marker": "x",
    "markersize": 3.5,
    "markeredgewidth": 0.8,
    "zorder": 6,
}


def figure6(rows: Rows) -> Figure:
    """Schur ratio R = 1 - delta at the query/key/value input by block, one panel per stack. `rows`
    are of the schema figure6.
    """
    rows = [
        row
        for row in one_arithmetic(rows)
        if row["tap"] == SCHUR_TAP and row["delta_recovered"] is not None
    ]
    if not rows:
        raise InputError(
            f"figure6: no Schur value at {SCHUR_TAP}; measure at least one model whose "
            "query/key/value input is a norm's output"
        )
    shown = [1 - known_delta(row) for row in rows] + [
        row["predicted_ratio"] for row in rows if row["predicted_ratio"]
    ]
    span = max(-math.log10(min((value for value in shown if value > 0), default=0.1)), 1.0)
    limits = (10 ** (-1.08 * span), 10 ** (0.08 * span))

    series = Series(
        "block",
        lambda row: max(1 - known_delta(row), limits[0]),
        lambda row: row["delta_se"],
        lambda row: row["below_floor"],
        lambda row: row["delta_lower"] is not None,
    )

    def plot(axes: Axes, panel: Panel) -> None:
        blocks = max(row["block"] for row in panel.rows)
        axes.set(
            xlim=(0.5 - 0.02 * blocks, blocks + 0.5 + 0.02 * blocks), ylim=limits, yscale="log"
        )
        axes.set(xticks=_block_ticks(blocks), yticks=decades(limits))
        axes.axhline(1, color=GREY, linewidth=0.6, zorder=1)
        for kind in ("re-initialised", "trained"):
            plot_series(axes, panel.of_kind(kind), kind, series)
        trained = [row for row in panel.of_kind("trained") if row["predicted_ratio"]]
        axes.plot(
            [row["block"] for row in trained],
            [row["predicted_ratio"] for row in trained],
            **_PREDICTED,
        )

    return small_multiples(
        "Figure 6. Schur ratio at the query/key/value input, block by block",
        rows,
        plot,
        (r"block $\ell$", rf"$R=\lambda_{{\min}}(A)\,/\,{FORM}=1-\Delta_\gamma$"),
        _handles(rows),
        _notes(rows),
    )


def _predicted(rows: Rows) -> bool:
    return any(row["predicted_ratio"] is not None for row in rows)


def _handles(rows: Rows) -> list[Any]:
    """The legend of what there is."""
    handles = [
        *series_handles(rows),
        Line2D([], [], color=GREY, linewidth=0.6, label=r"$R=1$"),
    ]
    if any(row["below_floor"] for row in rows):
        hollow: dict[str, Any] = {
            "color": "black",
            "marker": "o",
            "markersize": 3,
            "markerfacecolor": "white",
        }
        label = "below floor (noise)"
        handles.append(Line2D([], [], linestyle="none", label=label, **hollow))
    if _predicted(rows):
        handles.append(Line2D([], [], **_PREDICTED, label=r"$1/(1+T^2)$"))
    return handles


def _notes(rows: Rows) -> list[str]:
    """What is drawn, and what the markers mean that occur in these rows."""
    notes = [
        rf"$A=X^\mathrm{{T}}\!X/n$ at the input of the query/key/value maps, ${DIRECTION}$ of the "
        rf"norm that feeds them. Hollow: ${FORM}$ "
        "(of the seeds, at least half of the values) lies at or below the rounding floor; a marker "
        "on the lower edge stands for "
        f"all smaller ratios. {ERRORS}"
    ]
    if any(_blocks_without(panel) for panel in grouped(rows, *PLACE)):
        notes.append("No marker: a block whose maps read something else than a norm's output.")
    if _predicted(rows):
        notes.append(
            r"$T^2=m^\mathrm{T}C^{+}\!m$ of mean and covariance of the norm's output: behind a "
            r"LayerNorm $R$ is $1/(1+T^2)$ to first "
            "order, and never above it."
        )
    if any(row["delta_lower"] is not None for row in rows):
        notes.append(
            r"Triangles pointing down: $\lambda_{\min}$ lies below floor, $R$ is at most this."
        )
    return notes


def _blocks_without(rows: Rows) -> bool:
    blocks = {row["block"] for row in rows}
    return len(blocks) < max(blocks)


def _block_ticks(blocks: int) -> list[int]:
    step = math.ceil(blocks / 4)
    return sorted({1, *range(step, blocks + 1, step)})
