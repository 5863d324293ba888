"""All pairs of checkpoints: the share of units that agree, and the exact test."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from normgauge.render import style
from normgauge.render.page import AXIS, FULL, Page, widest
from normgauge.render.rows import Row, Rows, unique
from normgauge.render.style import BLACK, GREY
from normgauge.render.text import plain

_CELL = 25.0
_RELATED = "related"


def matrix(rows: Rows) -> Figure:
    """The matrix of all pairs. `rows` are of the schema lineage_pairs."""
    names = unique(name for row in rows for name in (row["a"], row["b"]))
    labels = [plain(name) for name in names]
    longest = widest(labels, style.NOTE)
    side, left = _CELL * len(names), longest + 12
    expected = sorted({row["layers"] for row in rows})
    note = (
        "Right of the diagonal: units that agree, of all; the darker, the more. By chance one a "
        f"layer, that is {_listed(expected)}. Left of it: z of the exact test over permutations. "
        "Framed: related by either, p at most 0.001. Pairs of other widths or families are not "
        "compared and stay white."
    )
    page = Page("Which checkpoints share an initialisation", side + AXIS + longest / 2 + 12, note)
    axes = page.axes(left, 0, min(side, FULL - left - 10), side)
    for row in rows:
        _pair(axes, names.index(row["a"]), names.index(row["b"]), row)
    _frame(axes, labels)
    return page.figure


def _pair(axes: Axes, first: int, second: int, row: Row) -> None:
    share = row["agreements"] / row["units"] if row["units"] else 0.0
    related = row["verdict"] == _RELATED
    colour, width = (BLACK, 1.2) if related else (GREY, 0.3)
    shade = str(round(0.97 - 0.5 * share, 3))
    for column, line, text, inside in (
        (second, first, f"{row['agreements']}\nof {row['units']}", shade),
        (first, second, f"z {row['units_z']:z.0f}", "white"),
    ):
        corner = (column - 0.44, line - 0.44)
        axes.add_patch(Rectangle(corner, 0.88, 0.88, facecolor=inside, edgecolor=colour, lw=width))
        ink = "white" if inside == shade and share > 0.7 else BLACK
        axes.text(column, line, text, ha="center", va="center", size=5.5, color=ink)


def _frame(axes: Axes, labels: list[str]) -> None:
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    # turned by 30 degrees, a label is half as high as it is long
    axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _listed(numbers: list[int]) -> str:
    return " or ".join(str(number) for number in numbers)
