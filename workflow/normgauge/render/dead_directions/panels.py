"""Small multiples along the depth: one panel for each stack of each model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normgauge.render import style
from normgauge.render.formats import count
from normgauge.render.labels import Names, arithmetic, input_notes, weight_notes
from normgauge.render.page import EDGE, FULL, Page
from normgauge.render.rows import Row, Rows, grouped
from normgauge.render.style import GREY
from normgauge.render.text import Footnotes, Ruler

PLACE = ("model", "revision", "stack")
"""What one panel is of."""

_COLUMNS, _LEFT, _GUTTER = 4, 38.0, 13.0
_LEADING, _TICKS, _XLABEL = 9.5, 18.0, 12.0


@dataclass(frozen=True)
class Panel:
    """One small multiple: the rows of one stack of one model, and its title, already wrapped."""

    rows: Rows
    title: tuple[str, ...]
    subtitle: tuple[str, ...]

    @property
    def lines(self) -> int:
        return len(self.title) + len(self.subtitle)

    def of_kind(self, kind: str) -> list[Row]:
        return [row for row in self.rows if row["kind"] == kind]


def one_arithmetic(rows: Rows) -> list[Row]:
    """Rows of one forward arithmetic per stack: float32, the published protocol, where it was
    measured, else the first by name.
    """
    dtypes: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        dtypes.setdefault(place_of(row), set()).add(row["forward_dtype"])
    chosen = {
        place: "float32" if "float32" in names else min(names) for place, names in dtypes.items()
    }
    return [row for row in rows if row["forward_dtype"] == chosen[place_of(row)]]


def place_of(row: Row) -> tuple[str, str, str]:
    return row["model"], row["revision"], row["stack"]


def small_multiples(
    title: str,
    rows: Rows,
    plot: Callable[[Axes, Panel], None],
    labels: tuple[str, str],
    legend: Sequence[Any],
    notes: Sequence[str],
) -> Figure:
    """Panels in rows of up to four; sizes are in points, so that any number of panels stays
    legible. `labels`: of the horizontal and of the vertical axes.
    """
    footnotes = Footnotes()
    columns = min(_COLUMNS, len({place_of(row) for row in rows}))
    width = (FULL - _LEFT - EDGE - _GUTTER * (columns - 1)) / columns
    depth = 70.0 if columns > 2 else 120.0
    panels = _panels(rows, Ruler(), width, footnotes)
    chunks = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    tops, bottom = _heights(chunks, columns, depth)
    texts = [*notes, f"$n$: tokens per site; {arithmetic(rows)}.", footnotes.text()]
    note = " ".join(text for text in texts if text)
    page = Page(title, bottom, note, legend, len(legend))
    for index, chunk in enumerate(chunks):
        for column, panel in enumerate(chunk):
            axes = page.axes(_LEFT + column * (width + _GUTTER), tops[index], width, depth)
            plot(axes, panel)
            _title(axes, panel)
            axes.tick_params(labelleft=column == 0)
            axes.minorticks_off()
            if index == len(chunks) - 1 or column >= len(chunks[index + 1]):
                axes.set_xlabel(labels[0], labelpad=2)
    middle = (tops[0] + tops[-1] + depth) / 2
    page.text(2, middle, labels[1], rotation=90, va="center", size=style.BODY)
    return page.figure


def _heights(
    chunks: Sequence[Sequence[Panel]], columns: int, depth: float
) -> tuple[list[float], float]:
    """Where each row of panels begins, below the head of its highest one, and where all end."""
    tops, down = [], 0.0
    for index, chunk in enumerate(chunks):
        labelled = index == len(chunks) - 1 or len(chunks[index + 1]) < columns
        tops.append(down + max(panel.lines for panel in chunk) * _LEADING + 4)
        down = tops[-1] + depth + _TICKS + _XLABEL * labelled
    return tops, down


def _panels(rows: Rows, ruler: Ruler, width: float, notes: Footnotes) -> list[Panel]:
    """The panels with their titles, those of one norm and placement together."""
    names = Names(rows)
    panels = []
    for members in grouped(rows, *PLACE):
        first = members[0]
        name = ruler.wrap(
            names.of(first) + notes.mark([*weight_notes(first), *input_notes(first)]),
            width,
            style.BODY,
            "bold",
        )
        facts = (
            f"{first['norm_kind']}, {first['placement']}, "
            f"$n={count(first['n']).replace(',', '{,}')}$"
        )
        panels.append(Panel(members, tuple(name), tuple(ruler.wrap(facts, width, style.NOTE))))
    order = list(
        dict.fromkeys((panel.rows[0]["norm_kind"], panel.rows[0]["placement"]) for panel in panels)
    )
    return sorted(
        panels,
        key=lambda panel: order.index((panel.rows[0]["norm_kind"], panel.rows[0]["placement"])),
    )


def _title(axes: Axes, panel: Panel) -> None:
    """The name of a panel above it, and under the name its norm and its tokens."""
    entries = [(line, style.NOTE, "normal", GREY) for line in reversed(panel.subtitle)]
    entries += [(line, style.BODY, "bold", "black") for line in reversed(panel.title)]
    for row, (text, size, weight, color) in enumerate(entries):
        axes.annotate(
            text,
            (0, 1),
            xytext=(0, 4 + row * _LEADING),
            xycoords="axes fraction",
            textcoords="offset points",
            size=size,
            weight=weight,
            color=color,
            annotation_clip=False,
        )
