"""How much of a learned artifact's effect each way of carrying it keeps."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normgauge.render import style
from normgauge.render.labels import Names
from normgauge.render.learned_artifacts.typeset import named
from normgauge.render.page import AXIS, FULL, Page, widest
from normgauge.render.rows import Rows, grouped
from normgauge.render.text import plain

_WAYS = {
    "signed_kept": ("recovered signed permutation", "o", style.TRAINED),
    "permutation_kept": ("its permutation alone", "^", style.RANDOM),
    "raw_kept": ("not moved", "s", style.GREY),
}
_LINE = 15.0  # points of the body for each artifact
_OFFSET = 0.22  # of a line, between ways


def kept_effects(rows: Rows) -> Figure:
    """A line for each artifact, a mark for each way and seed. `rows` are of the schema
    learned_artifacts.
    """
    names = Names(rows, ("revision",))
    groups = grouped(
        [row for row in rows if row["detectable"]], "model", "artifact", "space", "strength"
    )
    labels = [
        plain(f"{names.of(group[0])}: {named(group[0])}, {group[0]['space']}") for group in groups
    ]
    silent = len({tuple(row[key] for key in _LINE_KEYS) for row in rows}) - len(groups)
    note = (
        "Share of the effect on held-out text that is left on a copy under a recorded gauge; a "
        "mark for each seed. "
        + (f"Artifacts with an effect of 0.1 or less are left out: {silent}." * bool(silent))
    )
    handles = [
        Line2D([], [], color=color, marker=marker, linestyle="", label=label)
        for label, marker, color in _WAYS.values()
    ]
    depth = _LINE * len(groups)
    page = Page("Learned artifacts under a gauge", depth + AXIS, note, handles, 3)
    left = widest(labels) + 14
    panel = page.axes(left, 0, FULL - left - 10, depth)
    for place, group in enumerate(groups):
        for number, (key, (_, marker, color)) in enumerate(_WAYS.items()):
            panel.plot(
                [row[key] for row in group],
                [place + _OFFSET * (number - 1)] * len(group),
                color=color,
                marker=marker,
                linestyle="",
                markersize=4,
            )
    for share in (0.0, 1.0):
        panel.axvline(share, color=style.GREY, linewidth=0.6, zorder=0)
    panel.set_yticks(range(len(labels)), labels)
    panel.set_ylim(len(groups) - 0.5, -0.5)
    panel.set_xlabel("share of the effect kept")
    panel.tick_params(axis="y", length=0)
    return page.figure


_LINE_KEYS = ("model", "artifact", "space", "strength")
