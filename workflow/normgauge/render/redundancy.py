"""Tables and figures of the redundancy study, from its result tables alone."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib
from matplotlib.figure import Figure

from normgauge.render import style
from normgauge.render.labels import Names, Row, Rows
from normgauge.render.style import BLACK, DEVIATES, GREY, Ruler, number, plain
from normgauge.render.typeset import BodyRow, Cell, Column, Section, cell, draw_table
from normgauge.schemas.verdicts import Verdict

_SOURCES = {"shape": "Published shapes", "checkpoint": "Checkpoints", "small model": "Small models at random weights, Jacobian measured"}

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


def counts(rows: Rows) -> Figure:
    """Claimed and corrected counts, one row per architecture. `rows` are of the schema redundancy_counts."""
    columns = [
        Column("architecture", align="left", flexible=True),
        Column("norm", align="left"),
        Column("tied", align="left"),
        Column("parameters"),
        Column("directions", "claimed"),
        Column("share", "claimed"),
        Column("published", "claimed"),
        Column("directions", "corrected"),
        Column("share", "corrected"),
        Column("Jacobian's\nnullity"),
    ]
    sections = [
        Section(heading, [_count(row) for row in rows if row["source"] == source])
        for source, heading in _SOURCES.items()
        if any(row["source"] == source for row in rows)
    ]
    unused = ", ".join(f"{plain(row['architecture'])} ({row['unused']})" for row in rows if row["unused"])
    text = [
        r"claimed: $2\,n_t n_h d_h^2+(d-1)(d-2)/2$. corrected: the sum of the dimensions of the symmetries that hold. Nullity: "
        "parameters minus the rank of the derivative of all outputs by all parameters, float64, random inputs."
    ]
    if unused:
        text.append(f"The nullity includes parameters that no output depends on: {unused}.")
    stated = [row for row in rows if row["claimed_share_stated"] is not None]
    text += [
        f"{plain(row['architecture'])}: over the stated {row['stated_parameters']:,} parameters the claimed share is "
        f"{_percent(row['claimed_share_stated'])} ({row['status']})."
        for row in stated
    ]
    return draw_table("Directions in which the parameters move and the function does not", columns, sections, text)


def _count(row: Row) -> BodyRow:
    deviates = row["status"] not in ("reproduced", "not published")
    nullity = "—" if row["jacobian_nullity"] is None else f"{row['jacobian_nullity']:,}"
    doubtful = row["agrees"] is False
    published = "—" if row["published_share"] is None else f"{100 * row['published_share']:.1f}%" + (" (deviates)" if deviates else "")
    return BodyRow(
        (
            cell(plain(row["architecture"])),
            cell(row["norm_kind"]),
            cell("yes" if row["tied"] else "no"),
            cell(f"{row['parameters']:,}"),
            cell(f"{row['claimed']:,}"),
            cell(_percent(row["claimed_share"])),
            cell(published, color=DEVIATES if deviates else BLACK),
            cell(f"{row['corrected']:,}"),
            cell(_percent(row["corrected_share"])),
            cell(nullity + (" (not explained)" if doubtful else ""), color=DEVIATES if doubtful else BLACK),
        )
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def symmetries(rows: Rows) -> Figure:
    """What the corrected count consists of: one bar per architecture. `rows` are of the schema redundancy_symmetries."""
    names = list(dict.fromkeys(row["architecture"] for row in rows))
    families = sorted({row["symmetry"] for row in rows}, key=lambda family: -sum(row["share"] for row in rows if row["symmetry"] == family))
    totals = {name: sum(row["dimension"] for row in rows if row["architecture"] == name) for name in names}
    with matplotlib.rc_context({**style.RC, "hatch.linewidth": 0.5}):
        full, step = 72 * style.WIDTH, 13.0
        legend_rows = -(-len(families) // 3)
        left = max(Ruler().width(plain(name), style.BODY) for name in names) + 12
        top, depth, foot = 24.0 + 11 * legend_rows, step * len(names) + 4, 30.0
        height = top + depth + foot
        figure = Figure(figsize=(style.WIDTH, height / 72))
        axes = figure.add_axes((left / full, foot / height, (full - left - 12) / full, depth / height))
        edges = dict.fromkeys(names, 0.0)
        for family, (color, hatch) in zip(families, _LOOKS, strict=False):
            members = {row["architecture"]: row["dimension"] / totals[row["architecture"]] for row in rows if row["symmetry"] == family}
            axes.barh(
                [names.index(name) for name in members],
                list(members.values()),
                left=[edges[name] for name in members],
                height=0.72,
                color=color,
                hatch=hatch,
                edgecolor=BLACK if color == "#FFFFFF" or hatch else color,
                linewidth=0.3,
                label=plain(family),
            )
            for name, share in members.items():
                edges[name] += share
        axes.set(xlim=(0, 1), ylim=(len(names) - 0.4, -0.6), xlabel="share of the corrected count")
        axes.set_yticks(range(len(names)), [plain(name) for name in names])
        axes.tick_params(axis="y", length=0)
        figure.text(5 / full, 1 - 12 / height, "What makes parameters redundant", weight="bold", ha="left", va="baseline")
        figure.legend(
            loc="upper left",
            bbox_to_anchor=(5 / full, 1 - 16 / height),
            ncols=3,
            frameon=False,
            borderaxespad=0,
            borderpad=0,
            labelspacing=0.25,
            columnspacing=1.2,
            handlelength=1.6,
        )
        return figure


def jacobian(rows: Rows) -> Figure:
    """How the ranks were decided: the singular values at the gap, and the floor. `rows` are of the schema redundancy_jacobian."""
    series = (
        ("smallest_nonzero", "smallest that counts", "o", "#0072B2"),
        ("floor", "rounding floor", "|", BLACK),
        ("largest_zero", "largest that is zero", "s", "#E69F00"),
    )
    with matplotlib.rc_context(style.RC):
        full, step = 72 * style.WIDTH, 12.0
        labels = [f"{plain(row['architecture'])}: nullity {row['nullity']:,}, explained {row['explained']:,}" for row in rows]
        left = max(Ruler().width(label, style.BODY) for label in labels) + 12
        top, depth, foot = 40.0, step * len(rows) + 4, 30.0
        height = top + depth + foot
        figure = Figure(figsize=(style.WIDTH, height / 72))
        axes = figure.add_axes((left / full, foot / height, (full - left - 12) / full, depth / height))
        for key, label, marker, color in series:
            values = [row[key] or float("nan") for row in rows]
            axes.plot(values, range(len(rows)), linestyle="none", marker=marker, color=color, markersize=4.5, label=label, clip_on=False)
        axes.set(xscale="log", ylim=(len(rows) - 0.4, -0.6), xlabel="singular value of the Jacobian over the largest one")
        axes.set_yticks(range(len(rows)), labels)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", color=style.PALE, linewidth=0.6)
        axes.set_axisbelow(True)
        figure.text(5 / full, 1 - 12 / height, "How the ranks were decided", weight="bold", ha="left", va="baseline")
        place = (5 / full, 1 - 18 / height)
        figure.legend(loc="upper left", bbox_to_anchor=place, ncols=3, frameon=False, borderaxespad=0, borderpad=0, handlelength=1.0)
        return figure


def falsifier(rows: Rows) -> Figure:
    """The claimed rotation, tried. `rows` are of the schema redundancy_falsifier."""
    columns = [
        Column("block", align="left", flexible=True),
        Column("norm", align="left"),
        Column("gain, bias", align="left"),
        Column("value map moves by", align="left"),
        Column("predicted"),
        Column("largest difference"),
        Column("relative"),
        Column("holds", align="left"),
    ]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["test"], []).append(row)
    sections = [Section(plain(test), [_trial(row) for row in members]) for test, members in groups.items()]
    text = [
        "One block of width 8, heads of 4, 16 feed-forward units, random weights, 100 sequences of 4 tokens, float64. A rotation g (of "
        "SO(7), fixing the vector of ones, for LayerNorm) is applied to everything but gains and biases of norms; holds: the largest "
        r"difference is at most $10^{-12}$. predicted: how far gains, biases and value maps are from passing g, relative; "
        "— where the claim must hold."
    ]
    return draw_table("The claimed rotation, tried", columns, sections, text)


def _trial(row: Row) -> BodyRow:
    texts = (row["architecture"], row["norm_kind"], row["gain"], row["value_rule"])
    values = (_predicted(row), number(row["max_abs_difference"], 2), number(row["relative_difference"], 2))
    return BodyRow((*(cell(plain(text)) for text in texts), *(cell(value) for value in values), _verdict(row["holds"])))


def _verdict(yes: bool) -> Cell:
    return cell("yes") if yes else cell("no", color=DEVIATES)


def checks(rows: Rows) -> Figure:
    """Every symmetry on real checkpoints, and controls. `rows` are of the schema redundancy_checks."""
    names = Names(rows, ("revision",))
    columns = [
        Column("symmetry, at a random place", align="left", flexible=True),
        Column("directions"),
        Column("predicted"),
        Column("largest difference"),
        Column("relative"),
        Column("as expected", align="left"),
    ]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(names.of(row), []).append(row)
    sections = [Section(name, [_check(row) for row in members]) for name, members in groups.items()]
    text = [
        "All places of a family moved at once, float64; as expected: a symmetry leaves the outputs within 1e-10 of themselves, relative. "
        "Grey rows are controls, which must change them by 1e-7 or more; predicted: how far each is from a symmetry, relative to what it "
        "changes; no power: a control that predicts less than 1e-8."
    ]
    return draw_table("Symmetries on real checkpoints", columns, sections, text)


def _check(row: Row) -> BodyRow:
    color = BLACK if row["symmetric"] else GREY
    dimension = f"{row['dimension']:,}" if row["dimension"] else "—"
    values = (_predicted(row), number(row["max_abs_deviation"], 2), number(row["relative_deviation"], 2))
    return BodyRow(
        (
            cell(plain(row["symmetry"]), color=color),
            cell(dimension, color=color),
            *(cell(value, color=color) for value in values),
            cell(_SAID[Verdict(row["verdict"])], color=DEVIATES if row["verdict"] == Verdict.FAILED else color),
        )
    )


def _predicted(row: Row) -> str:
    return "—" if row["predicted_effect"] is None else number(row["predicted_effect"], 2)


_SAID = {Verdict.PASSED: "yes", Verdict.FAILED: "NO", Verdict.NO_POWER: "no power"}

DRAWINGS: dict[str, Callable[[Rows], Figure]] = {
    "redundancy_counts": counts,
    "redundancy_symmetries": symmetries,
    "redundancy_jacobian": jacobian,
    "redundancy_falsifier": falsifier,
    "redundancy_checks": checks,
}
