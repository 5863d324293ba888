"""Figures of the experiments: profiles of six estimators, spread against samples, and perplexity
against removed directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normgauge.render.formats import count, number
from normgauge.render.page import AXIS, FULL, Page
from normgauge.render.rows import Rows, grouped, unique
from normgauge.render.style import BLACK, GREY
from normgauge.render.text import plain

_LOOKS: tuple[Mapping[str, Any], ...] = (
    {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    {"color": "#E69F00", "marker": "s", "linestyle": "--"},
    {"color": "#009E73", "marker": "^", "linestyle": "-."},
    {"color": "#CC79A7", "marker": "D", "linestyle": ":"},
)
_SMALL: Mapping[str, Any] = {"markersize": 3, "linewidth": 1.0}
_DEPTH, _GAP = 120.0, 48.0


def _panels(title: str, count_of: int, note: str, legend: list[Any]) -> tuple[Page, list[Axes]]:
    """A page with panels side by side."""
    page = Page(title, _DEPTH + AXIS + 12, note, legend, 3)
    width = (FULL - 46 - _GAP * (count_of - 1)) / count_of
    return page, [
        page.axes(40 + number_of * (width + _GAP), 12, width, _DEPTH)
        for number_of in range(count_of)
    ]


def estimators(rows: Rows) -> Figure:
    """Depth profile by estimator, of those that have more samples than coordinates. `rows` are of
    the schema estimators.
    """
    defined = [name for name in unique(row["estimator"] for row in rows) if _has(rows, name)]
    looks = {name: _LOOKS[place % 4] for place, name in enumerate(defined)}
    handles = [Line2D([], [], **look, **_SMALL, label=name) for name, look in looks.items()]
    without = [
        f"{members[0]['estimator']}: {count(members[0]['n'])} samples for {members[0]['d']} "
        "coordinates, largest deviation "
        f"{number(max(row['sigma_max_per_root_n'] for row in members), 2)} (floor "
        f"{number(max(row['floor_per_root_n'] for row in members), 1)})"
        for members in grouped(rows, "estimator")
        if members[0]["estimator"] not in defined
    ]
    models = grouped(rows, "model", "revision")
    note = (
        "Bars: one standard error over sequences. Not defined: " + "; ".join(without) + ". "
        "The first position of a causal model sees one token alone."
    )
    page, panels = _panels("Six estimators of one pass", len(models), note, handles)
    for axes, members in zip(panels, models, strict=True):
        for place, (name, look) in enumerate(looks.items()):
            own = [row for row in members if row["estimator"] == name]
            shift = 0.06 * (place - (len(looks) - 1) / 2)
            axes.errorbar(
                [row["block"] + shift for row in own],
                [row["ratio"] for row in own],
                [row["ratio_se"] or 0 for row in own],
                **look,
                **_SMALL,
                elinewidth=0.8,
            )
        axes.axhline(1, color=GREY, linewidth=0.6)
        axes.set(xlabel=r"block $\ell$", xticks=unique(row["block"] for row in members))
        axes.set_title(plain(members[0]["model"]), loc="left", weight="bold", pad=3)
    panels[0].set_ylabel(r"ratio to $X_0$")
    return page.figure


def _has(rows: Rows, name: str) -> bool:
    return any(row["ratio"] is not None for row in rows if row["estimator"] == name)


_DESIGNS = {"disjoint": _LOOKS[0], "one pool": _LOOKS[1]}


def sample_budget(rows: Rows) -> Figure:
    """Coefficient of variation against samples per coordinate. `rows` are of the schema
    sample_budget.
    """
    handles = [
        *(Line2D([], [], **look, **_SMALL, label=name) for name, look in _DESIGNS.items()),
        Line2D([], [], color=BLACK, marker="x", linestyle="none", markersize=4, label="jackknife"),
        Line2D([], [], color=GREY, linestyle=":", linewidth=1, label="first-order bound"),
    ]
    sites = grouped(rows, "model", "site")
    subsets = rows[0]["subsets"]
    note = (
        f"Smallest active eigenvalue over {subsets} subsets. disjoint: they share no token; one "
        "pool: each drawn from one data set of the largest size, where subsets of that size are "
        "one and the same (arrow: exactly 0). jackknife: what one subset says of its own spread. "
        "first-order bound: published, "
        r"$\sigma_{\max}/(\sigma_{\min}n^{1/2})$ (off the axis where absent). Bars: one standard "
        "error of the coefficient."
    )
    page, panels = _panels("Samples per coordinate", len(sites), note, handles)
    shown = [row["variation"] for row in rows if row["variation"] > 0]
    low = min(shown) / 3
    for axes, members in zip(panels, sites, strict=True):
        axes.set(xscale="log", yscale="log", ylim=(low, 4 * max(shown)))
        for design, look in _DESIGNS.items():
            own = [row for row in members if row["design"] == design]
            above = [row for row in own if row["variation"] > 0]
            axes.errorbar(
                [row["n_over_d"] for row in above],
                [row["variation"] for row in above],
                [row["variation_se"] for row in above],
                **look,
                **_SMALL,
                elinewidth=0.8,
            )
            for row in own:
                if row["variation"] == 0:
                    axes.plot(row["n_over_d"], low * 1.25, marker="v", color=look["color"])
        own = [row for row in members if row["design"] == "disjoint"]
        known = [row for row in own if row["jackknife_variation"]]
        axes.plot(
            [row["n_over_d"] for row in known],
            [row["jackknife_variation"] for row in known],
            color=BLACK,
            marker="x",
            linestyle="none",
            markersize=4,
        )
        axes.plot(
            [row["n_over_d"] for row in own],
            [row["first_order_bound"] for row in own],
            color=GREY,
            linestyle=":",
            linewidth=1,
        )
        ticks = unique(row["n_over_d"] for row in own)
        axes.set(xlabel="samples per coordinate $n/d$", xticks=ticks)
        axes.set_xticklabels([f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_title(plain(members[0]["site"]), loc="left", weight="bold", pad=3)
    panels[0].set_ylabel(r"variation of $\lambda_{\min}$")
    return page.figure


_ALLOCATIONS = {
    "uniform": "uniform",
    "early": r"early, $k_\ell\propto L-\ell$",
    "late": r"late, $k_\ell\propto\ell-1$",
}


def figure7(rows: Rows) -> Figure:
    """Rise of the loss against the share of directions removed. `rows` are of the schema
    figure7.
    """
    looks = dict(zip(_ALLOCATIONS, _LOOKS, strict=False))
    handles = [
        Line2D([], [], **looks[name], **_SMALL, label=label) for name, label in _ALLOCATIONS.items()
    ]
    models = grouped(rows, "model", "revision")
    note = (
        "Behind block $\\ell$ the $k_\\ell$ principal directions of least variance are replaced by "
        "their mean; the paper does not define its projection, this is ours. Loss on "
        f"{rows[0]['sequences']} sequences that gave no directions; bars: one standard error of "
        "the difference over sequences. The axis is linear below 1e-4."
    )
    page, panels = _panels("Figure 7. Directions removed", len(models), note, handles)
    for axes, members in zip(panels, models, strict=True):
        axes.set_yscale("symlog", linthresh=1e-4)
        for place, (name, look) in enumerate(looks.items()):
            own = [row for row in members if row["allocation"] == name]
            axes.errorbar(
                [row["share"] * (1 + 0.02 * (place - 1)) for row in own],
                [row["loss_rise"] for row in own],
                [row["loss_rise_se"] or 0 for row in own],
                **look,
                **_SMALL,
                elinewidth=0.8,
            )
        intact = next(row for row in members if row["allocation"] == "none")
        axes.axhline(0, color=GREY, linewidth=0.6)
        axes.set_xlabel(r"share of the $L\times d$ directions removed")
        title = f"{plain(members[0]['model'])}, perplexity {number(intact['perplexity'], 3)}"
        axes.set_title(title, loc="left", weight="bold", pad=3)
    panels[0].set_ylabel("rise of the loss, nats per token")
    return page.figure


def figure2(rows: Rows) -> Figure:
    """The developmental arc: ratios by block and step, and the kernel's cosine against the uniform
    direction's. `rows` are of the schema figure2.
    """
    note = (
        "Left: fixed-rank ratio to $X_0$ by block; right: one minus |cos| of the bottom direction "
        r"after the last norm with $1/\gamma$, and with the all-ones direction, by step. Bars: one "
        f"standard error over sequences. {_trained(rows)}"
    )
    steps = unique(row["step"] for row in sorted(rows, key=lambda row: row["step"]))
    first = grouped(rows, "model", "run")[0]
    page, (left, right) = _panels("Figure 2. The stream along a training", 2, note, [])
    for number_of, members in enumerate(grouped(first, "block")[1:]):
        own = sorted(members, key=lambda row: row["step"])
        left.errorbar(
            [steps.index(row["step"]) for row in own],
            [row["ratio"] for row in own],
            [row["ratio_se"] or 0 for row in own],
            **_LOOKS[number_of % 4],
            **_SMALL,
            elinewidth=0.8,
            label=rf"block {own[0]['block']}",
        )
    left.axhline(1, color=GREY, linewidth=0.6)
    left.set(ylabel=r"ratio to $X_0$")
    ends = sorted(
        (row for row in first if row["block"] == row["blocks"]), key=lambda row: row["step"]
    )
    for key, label, look in (
        ("kernel_cosine", r"$1/\gamma$", _LOOKS[0]),
        ("ones_cosine", "all ones", _LOOKS[1]),
    ):
        known = [row for row in ends if row[key] is not None]
        right.plot(
            [steps.index(row["step"]) for row in known],
            [max(1 - row[key], 1e-16) for row in known],
            **look,
            **_SMALL,
            label=label,
        )
    right.set(yscale="log", ylabel=r"$1-|\cos|$")
    for axes in (left, right):
        axes.set(xlabel="step", xticks=range(len(steps)))
        axes.set_xticklabels([str(step) for step in steps])
        axes.legend(frameon=False, fontsize=7)
    return page.figure


def _trained(rows: Rows) -> str:
    first = rows[0]
    runs = len(unique(row["run"] for row in rows))
    return (
        f"{plain(first['model'])}, {first['norm_kind']}, trained here, {runs} "
        f"run{'s' if runs > 1 else ''}; $n$ = {count(first['n'])} tokens."
    )


def figure5(rows: Rows) -> Figure:
    """Fine-tuning of feed-forwards alone: ratio by block and step over runs. `rows` are of the
    schema figure5.
    """
    note = (
        "Fixed-rank ratio to $X_0$ of each block's output: mean over runs; bars: from the smallest "
        f"to the largest run. Only feed-forward weights are trained. {_trained(rows)}"
    )
    blocks = [members for members in grouped(rows, "block") if members[0]["block"]]
    handles = [
        Line2D([], [], **_LOOKS[place % 4], **_SMALL, label=f"block {members[0]['block']}")
        for place, members in enumerate(blocks)
    ]
    page, (axes,) = _panels("Figure 5. Feed-forwards fine-tuned", 1, note, handles)
    for place, members in enumerate(blocks):
        steps = sorted(grouped(members, "step"), key=lambda each: each[0]["step"])
        known = [[row["ratio"] for row in each if row["ratio"] is not None] for each in steps]
        middle = [sum(each) / len(each) for each in known]
        axes.errorbar(
            [each[0]["step"] for each in steps],
            middle,
            [
                [max(mean - min(each), 0) for mean, each in zip(middle, known, strict=True)],
                [max(max(each) - mean, 0) for mean, each in zip(middle, known, strict=True)],
            ],
            **_LOOKS[place % 4],
            **_SMALL,
            elinewidth=0.8,
        )
    axes.axhline(1, color=GREY, linewidth=0.6)
    axes.set(xlabel="step", ylabel=r"ratio to $X_0$")
    return page.figure
