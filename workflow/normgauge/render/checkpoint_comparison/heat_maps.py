"""Heat maps over the blocks: rows are parts or heads, colours are logarithmic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm

from normgauge.render import style
from normgauge.render.formats import short
from normgauge.render.page import FULL, Page

LEFT = 42.0
"""Where the panels begin, points from the left edge."""

_MAP, _BAR, _HEADING = "cividis", 48.0, 46.0
_MOST_LABELLED = 16  # columns up to which cells carry their value


@dataclass(frozen=True)
class HeatMap:
    """A heading, values by row and block, and the names of the rows."""

    heading: str
    grid: numpy.ndarray
    names: Sequence[Any]

    @property
    def depth(self) -> float:
        """Height without its heading, points."""
        return max(14.0 * self.grid.shape[0], 28.0)


def depth_of(maps: Sequence[HeatMap]) -> float:
    """Points that the maps take, with their headings and what lies between them."""
    return sum(each.depth + _HEADING for each in maps)


def draw_maps(page: Page, maps: Sequence[HeatMap], blocks: Sequence[int]) -> None:
    """Heat maps one below the other from the top of the body, columns are blocks; cells carry their
    values where there is room.
    """
    width, down = FULL - LEFT - _BAR, 0.0
    step = -(-len(blocks) // 24)
    for each in maps:
        page.text(LEFT, down + 12, each.heading)
        axes = page.axes(LEFT, down + 17, width, each.depth)
        mesh = _heat(axes, each.grid)
        _bar(page, page.axes(FULL - _BAR + 8, down + 17, 7, each.depth), mesh)
        axes.set_yticks(range(len(each.names)), [str(name) for name in each.names])
        axes.set_xticks(range(0, len(blocks), step), [str(block) for block in blocks[::step]])
        axes.tick_params(length=0)
        down += each.depth + _HEADING
    page.text(LEFT + width / 2, down - 8, "block", ha="center")


def scale_of(grid: numpy.ndarray) -> LogNorm:
    """A logarithmic scale over the values, over a decade at least: values that are nearly equal
    look so.
    """
    positive = grid[numpy.isfinite(grid) & (grid > 0)]
    low, high = (float(positive.min()), float(positive.max())) if positive.size else (0.1, 1.0)
    widened = max((10 * low / high) ** 0.5, 1.0)
    return LogNorm(low / widened, high * widened)


def _bar(page: Page, axes: Axes, mesh: QuadMesh) -> None:
    """The colours of one heat map, with its ends and what lies midway."""
    low, high = (float(numpy.asarray(end)) for end in mesh.get_clim())
    bar = page.figure.colorbar(mesh, cax=axes)
    ticks = [low, (low * high) ** 0.5, high]
    bar.set_ticks(ticks, labels=[short(value) for value in ticks])
    bar.minorticks_off()
    axes.tick_params(length=2, pad=2, labelsize=style.NOTE)


def _heat(axes: Axes, grid: numpy.ndarray) -> QuadMesh:
    scale = scale_of(grid)
    shown = numpy.ma.masked_where(~(grid > 0), grid)
    colours = matplotlib.colormaps[_MAP].with_extremes(bad=style.PALE)
    mesh = axes.pcolormesh(
        numpy.arange(grid.shape[1] + 1) - 0.5,
        numpy.arange(grid.shape[0] + 1) - 0.5,
        shown,
        norm=scale,
        cmap=colours,
    )
    axes.invert_yaxis()
    if grid.shape[1] <= _MOST_LABELLED:
        for (row, column), value in numpy.ndenumerate(grid):
            if numpy.isfinite(value):
                dark = value > 0 and scale(value) < 0.6
                axes.text(
                    column,
                    row,
                    short(value),
                    size=style.NOTE,
                    ha="center",
                    va="center_baseline",
                    color="white" if dark else "black",
                )
    return mesh
