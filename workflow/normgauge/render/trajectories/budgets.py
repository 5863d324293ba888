"""Figures of probe budgets, of cycles and of natural alignments of models trained here."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render.rows import Rows
from normgauge.render.trajectories.series import mean, named, of_space, page_of, plot, spaces_of
from normgauge.schemas.signed_permutation import ALL_SITES, IN_GROUP


def endpoint_budget(rows: Rows) -> Figure:
    """Accuracy of one match of base and end against the samples behind it."""
    rates = sorted({row["learning_rate"] for row in rows})
    spaces = spaces_of(rows)
    page, drawn = page_of(
        "One match over a long stride, by its probes",
        [named(space) for space in spaces],
        [f"learning rate {rate:g}" for rate in rates],
        "Share of coordinates matched to their recorded place, base and end of a run in one match; "
        "mean over texts.",
    )
    for axes, space in zip(drawn, spaces, strict=True):
        own = of_space(rows, space)
        for number, rate in enumerate(rates):
            here = [row for row in own if row["learning_rate"] == rate]
            budgets = sorted({row["tokens"] for row in here})
            points = [
                (tokens, mean([row for row in here if row["tokens"] == tokens], "accuracy"))
                for tokens in budgets
            ]
            plot(axes, number, points)
        axes.set(xscale="log", ylim=(0, 1))
        axes.set_xlabel("tokens", labelpad=2)
    drawn[0].set_ylabel("share")
    return page.figure


def natural_alignment(rows: Rows) -> Figure:
    """Agreement with the reference, and certainty, of matches between models trained apart."""
    chosen = [row for row in rows if row["site"] == ALL_SITES and row["match"] == IN_GROUP]
    others = list(dict.fromkeys(row["other"] for row in chosen))
    keys = {
        "agreement": "agrees with the largest match of the other half",
        "split_half": "agrees with as many tokens of the other half",
        "certain": "certain",
        "negative": "negative sign",
    }
    page, drawn = page_of(
        "Models trained apart, matched by growing numbers of probes",
        [f"{rows[0]['revision']} and {other.split('@')[-1]}" for other in others],
        list(keys.values()),
        f"Share of the coordinates of the residual stream of {rows[0]['model']}; all sites "
        "together.",
    )
    for axes, other in zip(drawn, others, strict=True):
        own = sorted(
            (row for row in chosen if row["other"] == other), key=lambda row: row["tokens"]
        )
        for number, key in enumerate(keys):
            plot(axes, number, [(row["tokens"], row[key]) for row in own])
        axes.set(xscale="log", ylim=(0, 1))
        axes.set_xlabel("tokens", labelpad=2)
    drawn[0].set_ylabel("share")
    return page.figure


def cycles(rows: Rows) -> Figure:
    """Per cycle, coordinates that meet certain matches alone against those that are not back."""
    spaces = spaces_of(rows)
    kinds = {True: "base and two ends", False: "three ends"}
    page, drawn = page_of(
        "Cycles of matches, each found on its own",
        [named(space) for space in spaces],
        [f"around {kind}" for kind in kinds.values()],
        "Across the share of coordinates that meet certain matches alone, up the share that the "
        "cycle does not bring back to itself with its sign. All learning rates.",
    )
    for axes, space in zip(drawn, spaces, strict=True):
        own = of_space(rows, space)
        for number, based in enumerate(kinds):
            points = [
                (row["certain"], row["moved"])
                for row in own
                if row["cycle"].startswith("base") == based
            ]
            plot(axes, number, points, joined=False)
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5), yticks=(0, 0.5, 1))
        axes.set_xlabel("certain", labelpad=2)
    drawn[0].set_ylabel("not brought back")
    return page.figure
