"""Figures of transport: where chains break, between runs, and what the rule of trust expected."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render import style
from normgauge.render.rows import Rows
from normgauge.render.trajectories.series import mean, named, of_space, page_of, plot, spaces_of
from normgauge.schemas.trajectories import ENDPOINT, TRANSPORT


def where_it_breaks(rows: Rows) -> Figure:
    """Accuracy of chains against the stride of their matches, by learning rate; at the right edge
    one match of the ends.
    """
    tokens = max(row["tokens"] for row in rows)
    chosen = [row for row in rows if row["tokens"] == tokens]
    rates = sorted({row["learning_rate"] for row in chosen})
    spaces = spaces_of(chosen)
    page, drawn = page_of(
        "Where transport breaks",
        [named(space) for space in spaces],
        [f"learning rate {rate:g}" for rate in rates],
        f"Share of coordinates that are brought to their recorded place with their sign, {tokens} "
        "tokens, mean over runs: matches at every so many steps composed, and, hollow, one match "
        "of base and end.",
    )
    for axes, space in zip(drawn, spaces, strict=True):
        own = of_space(chosen, space)
        for number, rate in enumerate(rates):
            here = [row for row in own if row["learning_rate"] == rate]
            strides = sorted({row["stride"] for row in here if row["way"] == TRANSPORT})
            chains = [
                (stride, mean([row for row in here if row["stride"] == stride], "signed_accuracy"))
                for stride in strides
            ]
            ends = [row for row in here if row["way"] == ENDPOINT]
            plot(axes, number, chains)
            plot(axes, number, [(ends[0]["steps"], mean(ends, "signed_accuracy"))], joined=False)
            axes.lines[-1].set_markerfacecolor("white")
        ticks = sorted({row["stride"] for row in own if row["stride"]} | {own[0]["steps"]})
        axes.set(xscale="log", ylim=(0, 1))
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("steps between matches", labelpad=2)
    drawn[0].set_ylabel("share")
    return page.figure


def between_runs(rows: Rows) -> Figure:
    """Per pair of runs, transport by way of the base against one match of the ends."""
    tokens = max(row["tokens"] for row in rows)
    chosen = [row for row in rows if row["tokens"] == tokens]
    kinds = list(dict.fromkeys(row["pair"] for row in chosen))
    spaces = spaces_of(chosen)
    page, drawn = page_of(
        "Transport and one match, pair by pair",
        [named(space) for space in spaces],
        [kind.replace("cross-", "runs that differ in their ") for kind in kinds],
        f"Share of coordinates with their sign, {tokens} tokens: one match of two runs' ends "
        "across, two chains by way of the base up. A point above the diagonal: transport finds "
        "more. All learning rates.",
    )
    for axes, space in zip(drawn, spaces, strict=True):
        own = of_space(chosen, space)
        axes.plot([0, 1], [0, 1], color=style.GREY, linewidth=0.6, zorder=1)
        for number, kind in enumerate(kinds):
            found: dict[tuple[str, str, str], dict[str, float]] = {}
            for row in own:
                if row["pair"] == kind:
                    pair = (row["model"], row["first"], row["second"])
                    found.setdefault(pair, {})[row["way"]] = row["signed_accuracy"]
            points = [(each[ENDPOINT], each["transport via base"]) for each in found.values()]
            plot(axes, number, points, joined=False)
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5), yticks=(0, 0.5, 1))
        axes.set_xlabel("one match", labelpad=2)
    drawn[0].set_ylabel("transport via base")
    return page.figure


def expected_and_found(rows: Rows) -> Figure:
    """Per chain, what the rule of trust expected against what was found."""
    chosen = [row for row in rows if row["way"] == TRANSPORT]
    rates = sorted({row["learning_rate"] for row in chosen})
    page, drawn = page_of(
        "Which chains to trust",
        ["runs that the rule was fitted on", "runs that it has not seen"],
        [f"learning rate {rate:g}" for rate in rates],
        "Share of coordinates that arrive: as expected from the leads of the local matches across, "
        "as found up; one point for each chain of a run, space, stride and budget. Right of the "
        "dashed line a chain is trusted.",
    )
    for axes, fitted in zip(drawn, (True, False), strict=True):
        axes.plot([0, 1], [0, 1], color=style.GREY, linewidth=0.6, zorder=1)
        axes.axvline(0.9, color=style.GREY, linewidth=0.6, linestyle=(0, (3, 2)), zorder=1)
        for number, rate in enumerate(rates):
            points = [
                (row["predicted"], row["signed_accuracy"])
                for row in chosen
                if row["fitted"] == fitted and row["learning_rate"] == rate
            ]
            plot(axes, number, points, joined=False)
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5), yticks=(0, 0.5, 1))
        axes.set_xlabel("expected", labelpad=2)
    drawn[0].set_ylabel("found")
    return page.figure
