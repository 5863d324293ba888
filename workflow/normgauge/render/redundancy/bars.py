"""What the corrected count consists of, and how the ranks behind it were decided."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from normgauge.render import style
from normgauge.render.page import AXIS, FULL, Page, widest
from normgauge.render.rows import Rows, unique
from normgauge.render.style import BLACK
from normgauge.render.text import plain

_STEP = 13.0

_LOOKS = (
    ("#0072B2", ""),
    ("#56B4E9", "////"),
    ("#009E73", ""),
    ("#E69F00", ""),
    ("#F0E442", "\\\\\\\\"),
    ("#D55E00", ""),
    ("#CC79A7", "...."),
    ("#000000", ""),
    ("#999999", ""),
    ("#999999", "////"),
    ("#FFFFFF", "xxxx"),
    ("#FFFFFF", "...."),
    ("#FFFFFF", ""),
    ("#56B4E9", "xxxx"),
)
"""Colours (Okabe-Ito) and hatches of the families of symmetries."""


def symmetries(rows: Rows) -> Figure:
    """What the corrected count consists of: one bar per architecture. `rows` are of the schema
    redundancy_symmetries.
    """
    names = unique(row["architecture"] for row in rows)
    families = sorted(
        unique(row["symmetry"] for row in rows),
        key=lambda family: -sum(row["share"] for row in rows if row["symmetry"] == family),
    )
    looks: dict[str, dict[str, Any]] = {
        family: {
            "facecolor": color,
            "hatch": hatch,
            "edgecolor": BLACK if color == "#FFFFFF" or hatch else color,
            "linewidth": 0.3,
        }
        for family, (color, hatch) in zip(families, _LOOKS, strict=False)
    }
    handles = [Patch(label=plain(family), **look) for family, look in looks.items()]
    title = "What makes parameters redundant"
    page, axes = _labelled(title, [plain(name) for name in names], handles)
    totals = {
        name: sum(row["dimension"] for row in rows if row["architecture"] == name) for name in names
    }
    edges = dict.fromkeys(names, 0.0)
    for family, look in looks.items():
        for row in rows:
            if row["symmetry"] == family:
                name = row["architecture"]
                share = row["dimension"] / totals[name]
                axes.barh(names.index(name), share, left=edges[name], height=0.72, **look)
                edges[name] += share
    axes.set(xlim=(0, 1), xlabel="share of the corrected count")
    return page.figure


_RANKS = (
    ("smallest_nonzero", "smallest that counts", "o", "#0072B2"),
    ("floor", "rounding floor", "|", BLACK),
    ("largest_zero", "largest that is zero", "s", "#E69F00"),
)


def jacobian(rows: Rows) -> Figure:
    """How the ranks were decided: the singular values at the gap, and the floor. `rows` are of the
    schema redundancy_jacobian.
    """
    labels = [
        f"{plain(row['architecture'])}: nullity {row['nullity']:,}, explained {row['explained']:,}"
        for row in rows
    ]
    looks: list[dict[str, Any]] = [
        {"linestyle": "none", "marker": marker, "color": color, "markersize": 4.5, "label": label}
        for _, label, marker, color in _RANKS
    ]
    handles = [Line2D([], [], **look) for look in looks]
    page, axes = _labelled("How the ranks were decided", labels, handles)
    for (key, *_), look in zip(_RANKS, looks, strict=True):
        values = [row[key] or float("nan") for row in rows]
        axes.plot(values, range(len(rows)), clip_on=False, **look)
    axes.set(xscale="log", xlabel="singular value of the Jacobian over the largest one")
    axes.grid(axis="y", color=style.PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    return page.figure


def _labelled(title: str, labels: list[str], handles: list) -> tuple[Page, Axes]:
    """A page with one panel, in which each of these labels has a line."""
    left, depth = widest(labels) + 12, _STEP * len(labels) + 4
    page = Page(title, depth + AXIS, legend=handles, columns=3)
    axes = page.axes(left, 0, FULL - left - 12, depth)
    axes.set(ylim=(len(labels) - 0.4, -0.6))
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", length=0)
    return page, axes
