"""The audit of one checkpoint on one page: what its coordinates are worth before a gauge is fixed,
and after.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from statistics import mean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from normgauge.errors import InputError
from normgauge.render import style
from normgauge.render.formats import number, percent
from normgauge.render.page import AXIS, EDGE, FULL, Page
from normgauge.render.rows import Row, Rows, grouped
from normgauge.render.signed_permutation.deviations import (
    deviation_handles,
    plot_deviations,
    prepare_deviations,
)
from normgauge.render.signed_permutation.tables import is_pooled, name_audit
from normgauge.render.style import GREY
from normgauge.render.text import Ruler, plain
from normgauge.schemas.signed_permutation import IN_GROUP, NO_SIGNS, tables
from normgauge.schemas.verdicts import Verdict, summarised
from normgauge.tables import read_metadata

PathLike = str | os.PathLike[str]
_LINE, _LEADING, _HEAD = 13.0, 11.0, 34.0


def draw_page(
    equivalence: PathLike,
    recovery: PathLike,
    audit: PathLike,
    transport: PathLike,
    outputs: Iterable[PathLike],
) -> None:
    """Draw the page from the four measurement files of one checkpoint. Raises InputError when they
    belong to different checkpoints.
    """
    metadata = [read_metadata(path) for path in (equivalence, recovery, audit, transport)]
    for found, path in zip(metadata, (equivalence, recovery, audit, transport), strict=True):
        if found["weights_sha256"] != metadata[0]["weights_sha256"]:
            raise InputError(
                f"{path}: belongs to other weights than {equivalence}; measure both again"
            )
    rows = (
        tables.read(equivalence, "equivalence"),
        tables.read(recovery, "gauge_recovery"),
        tables.read(audit, "gauge_audit"),
        tables.read(transport, "gauge_transport"),
    )
    style.save(page(metadata[0], *rows), outputs)


def page(
    metadata: dict[str, str], equivalence: Rows, recovery: Rows, audit: Rows, transport: Rows
) -> Figure:
    """A figure of `WIDTH` inches: findings in words, deviations, names and recovery."""
    families, claims = grouped(equivalence, "group"), name_audit(audit)
    with style.look():
        ruler = Ruler()
        findings = [
            ruler.wrap(text, FULL - 2 * EDGE, style.BODY)
            for text in _findings(equivalence, recovery, claims, transport)
        ]
        depths = (_LINE * len(families), _LINE * 2 * len(claims), 110.0)
        words = sum(_LEADING * len(lines) + 3 for lines in findings)
        title = plain(
            f"Audit of {metadata['model']} ({metadata['revision']}): {metadata['norm_kind']}, "
            f"{metadata['placement']}"
        )
        page = Page(title, words + sum(depth + _HEAD + AXIS for depth in depths))
        down = 0.0
        for lines in findings:
            for line in lines:
                page.text(EDGE, down + 0.8 * _LEADING, line)
                down += _LEADING
            down += 3
        panels = []
        for depth, left in zip(depths, (190.0, 150.0, 40.0), strict=True):
            panels.append(page.axes(left, down + _HEAD, FULL - left - 10, depth))
            down += _HEAD + depth + AXIS
        _deviations(panels[0], families)
        _names(panels[1], claims)
        _sites(panels[2], recovery)
        return page.figure


def names_page(model: str, architecture: str, audit: Rows) -> Figure:
    """The part of the page that needs no other measurement: names of coordinates under a recorded
    gauge. `audit`: rows of schema `gauge_audit` of one model.
    """
    claims = name_audit(audit)
    moved = max(row["relative_deviation"] for row in claims)
    with style.look():
        lines = Ruler().wrap(
            f"{_said_of_names(claims)} Outputs move by {number(moved, 1)} (float32).",
            FULL - 2 * EDGE,
            style.BODY,
        )
        words, depth = _LEADING * len(lines) + 3, _LINE * 2 * len(claims)
        page = Page(plain(f"Audit of {model}: {architecture}"), words + _HEAD + depth + AXIS)
        for place, line in enumerate(lines):
            page.text(EDGE, _LEADING * (place + 0.8), line)
        _names(page.axes(150.0, words + _HEAD, FULL - 160, depth), claims)
        return page.figure


def _said_of_names(claims: Rows) -> str:
    return (
        f"Coordinate names: of the {claims[0]['top']} highest, "
        f"{percent(mean(row['raw_overlap'] for row in claims))} keep their number "
        f"(chance {percent(mean(row['chance'] for row in claims))}); "
        f"{percent(min(row['mapped_overlap_min'] for row in claims))} at least agree once the "
        "gauge is applied."
    )


def _findings(equivalence: Rows, recovery: Rows, claims: Rows, transport: Rows) -> list[str]:
    """What the measurements say, in sentences; each says so where it fails."""
    inside = [row for row in equivalence if row["admissible"]]
    controls = [row for row in equivalence if not row["admissible"]]
    exact = [row["relative_deviation"] for row in inside if row["forward_dtype"] == "float64"]
    kept = (
        "is kept"
        if summarised(row["verdict"] for row in inside) == Verdict.PASSED
        else "IS NOT KEPT"
    )
    seen = _NOTICED[summarised(row["verdict"] for row in controls)]
    act = _ACT[summarised(row["transported"] for row in transport)]
    permuted = _PERMUTED[summarised(row["permutation_control"] for row in transport)]
    matched = [
        row
        for row in recovery
        if row["part"] == "residual" and row["match"] == IN_GROUP and not is_pooled(row)
    ]
    first = min(row["tokens"] for row in matched)
    complete = [
        row
        for row in matched
        if row["tokens"] == first and row["permutation_accuracy"] == row["sign_accuracy"] == 1
    ]
    fewest = [row for row in matched if row["tokens"] == first]
    wrong = [
        row
        for row in recovery
        if row["certain_accuracy"] is not None
        and row["certain_accuracy"] < 1
        and row["match"] == IN_GROUP
    ]
    return [
        f"The function {kept} by every change of coordinates in its group"
        + (f" (float64, within {number(max(exact), 1)} of the outputs)" if exact else "")
        + f"; every control outside the group {seen}.",
        _said_of_names(claims),
        f"The gauge is found again from {first} tokens at {len(complete)} of {len(fewest)} sites "
        "(times seeds); "
        + (
            "a coordinate that was not flagged was WRONG."
            if wrong
            else "no unflagged coordinate was wrong."
        ),
        f"Carried with it, {', '.join(dict.fromkeys(row['artifact'] for row in transport))} {act} "
        f"{number(max(row['transported_deviation'] for row in transport), 1)}; not moved, outputs "
        "change by "
        f"{number(min(row['raw_deviation'] for row in transport), 1)} or more; {permuted}.",
    ]


_NOTICED = {
    Verdict.PASSED: "is noticed",
    Verdict.FAILED: "IS NOT ALWAYS NOTICED",
    Verdict.NO_POWER: "that has the power to show is noticed; some have none",
}
_ACT = {
    Verdict.PASSED: "act as before, within",
    Verdict.FAILED: "DO NOT ALL ACT AS BEFORE: outputs deviate by up to",
    Verdict.NO_POWER: "act as before, but so would anything here, within",
}
_PERMUTED = {
    Verdict.PASSED: "moved by the permutation alone, they act otherwise",
    Verdict.FAILED: "moved by the permutation alone, NOT ALL ACT OTHERWISE",
    Verdict.NO_POWER: "the permutation alone tells nothing: this gauge has no negative signs",
}


def _heading(axes: Axes, text: str, handles: list) -> None:
    """A title at the page's left edge, the legend at its right, both above the axes."""
    place = axes.transAxes + ScaledTranslation(0, 21 / 72, axes.figure.dpi_scale_trans)
    blended = blended_transform_factory(axes.figure.transFigure, place)
    axes.text(EDGE / FULL, 1, text, transform=blended, weight="bold", ha="left", va="baseline")
    axes.legend(
        handles=handles,
        ncols=len(handles),
        loc="lower right",
        bbox_to_anchor=(1, 1),
        borderaxespad=0.2,
        frameon=False,
        handlelength=1.6,
    )


def _deviations(axes: Axes, families: list[Rows]) -> None:
    prepare_deviations(axes)
    axes.set(ylim=(len(families) - 0.5, -0.5), yticks=range(len(families)))
    axes.set_yticklabels([plain(group[0]["group"]) for group in families])
    axes.tick_params(axis="y", length=0)
    for place, group in enumerate(families):
        plot_deviations(axes, place, group)
    _heading(axes, "What changes the function", deviation_handles())


def _names(axes: Axes, claims: list[Row]) -> None:
    looks = (
        ("raw_overlap", style.DEVIATES, "", "by their numbers"),
        ("mapped_overlap", style.TRAINED, "////", "after the gauge"),
    )
    for place, row in enumerate(claims):
        for offset, (key, color, hatch, _) in zip((-0.2, 0.2), looks, strict=True):
            axes.barh(
                place + offset,
                row[key],
                height=0.36,
                color=color,
                hatch=hatch,
                edgecolor="white",
                linewidth=0,
            )
        axes.plot([row["chance"]] * 2, [place - 0.42, place + 0.42], color="black", linewidth=1.0)
    axes.set(
        xlim=(0, 1),
        ylim=(len(claims) - 0.4, -0.6),
        yticks=range(len(claims)),
        xlabel="share of the named coordinates that agree",
    )
    axes.set_yticklabels([plain(row["claim"]) for row in claims])
    axes.tick_params(axis="y", length=0)
    handles = [
        Patch(facecolor=color, hatch=hatch, edgecolor="white", linewidth=0, label=label)
        for _, color, hatch, label in looks
    ]
    _heading(
        axes,
        "Names of coordinates",
        [*handles, Line2D([], [], color="black", linewidth=1.0, label="chance")],
    )


def _sites(axes: Axes, recovery: Rows) -> None:
    streams = [row for row in recovery if row["part"] == "residual"]
    tokens = min(row["tokens"] for row in streams)
    alone = [
        row
        for row in streams
        if row["match"] == IN_GROUP and row["tokens"] == tokens and not is_pooled(row)
    ]
    sites = list(dict.fromkeys(row["site"] for row in alone))
    means = [
        mean(row["permutation_accuracy"] for row in alone if row["site"] == site) for site in sites
    ]
    label = f"each site alone, {tokens} tokens"
    handles = axes.plot(
        range(len(sites)),
        means,
        color=style.TRAINED,
        marker="o",
        markersize=3,
        label=label,
        clip_on=False,
    )
    lines = (
        (IN_GROUP, tokens, style.TRAINED),
        (NO_SIGNS, max(row["tokens"] for row in streams), style.DEVIATES),
    )
    for match, budget, color in lines:
        members = [
            row
            for row in streams
            if row["match"] == match and row["tokens"] == budget and is_pooled(row)
        ]
        if members:
            share = mean(row["permutation_accuracy"] for row in members)
            label = f"all together, {match.removeprefix('control: ')}, {budget} tokens"
            handles.append(
                axes.axhline(
                    share, color=color, linestyle=(0, (4, 1.5)), label=label, clip_on=False
                )
            )
    axes.axhline(1, color=GREY, linewidth=0.6, zorder=0)
    axes.set(
        xlim=(-0.3, len(sites) - 0.7),
        ylim=(0, 1.02),
        xlabel="residual site, from the embedding on",
        ylabel="share recovered",
    )
    _heading(axes, "The gauge found again", handles)
