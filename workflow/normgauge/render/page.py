"""The one page that every figure is drawn on: a title, a legend, a body of panels, and a note."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normgauge.render import style
from normgauge.render.text import Ruler

FULL = 72 * style.WIDTH
"""Width of a page, points."""

EDGE = 5.0
"""Between the text and the edge of the page, points."""

AXIS = 28.0
"""What tick labels and a label take below a panel, points."""

_TITLE, _LEADING = 20.0, 10.0


class Page:
    """A figure of `style.WIDTH` inches and of the height that its parts need. Use inside
    `style.look()`.

    Places and sizes of what is put into the body are in points, from the left edge of the page and
    from the top of the body.

    depth: height of the body, with the labels of its axes. legend: handles, `columns` in a row.
    note: wrapped below the body.

    >>> page = Page("Loss", 100 + AXIS, "One run.")
    >>> panel = page.axes(36, 0, FULL - 46, 100)
    """

    def __init__(
        self, title: str, depth: float, note: str = "", legend: Sequence[Any] = (), columns: int = 1
    ) -> None:
        self.ruler = Ruler()
        lines = self.ruler.wrap(note, FULL - 2 * EDGE, style.NOTE) if note else []
        self._top = _TITLE + 11.0 * -(-len(legend) // columns) + 2 * bool(legend)
        self._height = self._top + depth + 6 + _LEADING * len(lines)
        self.figure = Figure(figsize=(style.WIDTH, self._height / 72))
        self.text(EDGE, 12 - self._top, title, weight="bold")
        for number, line in enumerate(lines, 1):
            self.text(EDGE, depth + _LEADING * number, line, size=style.NOTE)
        if legend:
            self._legend(legend, columns)

    def _legend(self, handles: Sequence[Any], columns: int) -> None:
        self.figure.legend(
            handles=list(handles),
            loc="upper left",
            bbox_to_anchor=(EDGE / FULL, 1 - 16 / self._height),
            ncols=columns,
            frameon=False,
            borderaxespad=0,
            borderpad=0,
            handlelength=2.4,
            columnspacing=1.4,
            labelspacing=0.25,
        )

    def text(self, left: float, down: float, text: str, **style: Any) -> None:
        """Text from this place on; its baseline unless `va` says otherwise."""
        place = (left / FULL, 1 - (self._top + down) / self._height)
        self.figure.text(*place, text, **{"ha": "left", "va": "baseline", **style})

    def axes(self, left: float, down: float, width: float, depth: float) -> Axes:
        """Axes with this upper left corner and this size."""
        bottom = 1 - (self._top + down + depth) / self._height
        return self.figure.add_axes((left / FULL, bottom, width / FULL, depth / self._height))


def widest(labels: Sequence[str], size: float = style.BODY) -> float:
    """Width of the widest of these labels, points. Use inside `style.look()`."""
    ruler = Ruler()
    return max(ruler.width(label, size) for label in labels)


def panel(title: str, note: str, legend: Sequence[Any]) -> tuple[Page, Axes]:
    """A page with one wide panel, a line of the legend for each handle."""
    depth = 150.0
    page = Page(title, depth + AXIS, note, legend)
    return page, page.axes(40, 0, FULL - 50, depth)
