"""Figures of merging and of resumed training."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render import style
from normgauge.render.rows import Rows
from normgauge.render.text import plain
from normgauge.render.trajectories.series import LOOKS, page_of, plot
from normgauge.schemas.trajectories import MOVED, NOT_MOVED, PLACED_STATE


def barriers(rows: Rows) -> Figure:
    """The barrier of every pair, seed and way of aligning, on one axis for each kind of pair."""
    ways = list(dict.fromkeys(row["way"] for row in rows))
    groups = list(dict.fromkeys((row["first"], row["second"], row["moved"]) for row in rows))
    page, drawn = page_of(
        "Merging: the rise of the loss between two checkpoints",
        ["scrambled by a recorded gauge", "trained apart"],
        ways,
        "Peak above the chord between the ends at eleven points, with its standard error over "
        "sequences; one column of points for each pair, in the order of merge_barriers.csv, and "
        "for each recorded gauge. Points at the lower edge are below the rounding of the loss.",
    )
    for axes, kind in zip(drawn, ("scrambled", "trained apart"), strict=True):
        place, ticks, labels = 0, [], []
        for first, second, moved in groups:
            own = [
                row
                for row in rows
                if (row["first"], row["second"], row["moved"], row["kind"])
                == (first, second, moved, kind)
            ]
            begun = place
            for seed in dict.fromkeys(row["seed"] for row in own):
                for number, way in enumerate(ways):
                    for row in own:
                        if row["seed"] == seed and row["way"] == way:
                            height = max(row["barrier"], _LEAST)
                            plot(axes, number, [(place, height)], joined=False)
                            error = row["barrier_error"] or 0
                            axes.vlines(
                                place,
                                max(height - error, _LEAST),
                                height + error,
                                color=LOOKS[number]["color"],
                                linewidth=0.6,
                            )
                place += 1
            if own:
                ticks.append((begun + place - 1) / 2)
                labels.append(_pair_label(first, second, moved, kind))
        axes.set(yscale="log", ylim=(_LEAST, 20), xlim=(-0.6, place - 0.4))
        axes.set_xticks(ticks, labels, fontsize=style.NOTE - 1.5)
    drawn[0].set_ylabel("nat per token")
    return page.figure


_LEAST = 1e-3


def _pair_label(first: str, second: str, moved: str, kind: str) -> str:
    if kind == "scrambled":
        name = first.split("@")[0] if first == second else second.split("@")[0]
        return plain(name).replace("-135m", "")
    ends = " ".join(each.split("@seed")[-1] for each in (first, second))
    return f"{ends}\n{'stream' if moved == 'residual' else '+ units'}"


def resumed(rows: Rows) -> Figure:
    """Squared error of the logits along the resumed steps, by optimizer and state."""
    ways = [MOVED, PLACED_STATE, NOT_MOVED]
    optimizers = list(dict.fromkeys(row["optimizer"] for row in rows))
    page, drawn = page_of(
        "Training resumed after a change of coordinates",
        [{"adamw": "AdamW", "sgd": "SGD with momentum"}.get(each, each) for each in optimizers],
        [f"state: {way}" for way in ways],
        "Squared error of held-out logits over their squared length, against the run that was not "
        "moved; a line for each recorded gauge.",
    )
    for axes, optimizer in zip(drawn, optimizers, strict=True):
        for number, way in enumerate(ways):
            for seed in dict.fromkeys(row["seed"] for row in rows):
                points = [
                    (row["resumed"], row["relative_error"])
                    for row in rows
                    if (row["optimizer"], row["state"], row["seed"]) == (optimizer, way, seed)
                ]
                plot(axes, number, points)
        axes.set(yscale="log", ylim=(1e-15, 10))
        axes.set_xlabel("resumed steps", labelpad=2)
    drawn[0].set_ylabel("relative squared error")
    return page.figure
