"""Tables and figures of signed permutations, from the measurements of the checkpoints alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from statistics import mean

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normgauge.render import style
from normgauge.render.labels import Names, Row, Rows
from normgauge.render.style import GREY, Ruler, number, plain
from normgauge.render.typeset import BodyRow, Column, Section, cell, draw_table
from normgauge.schemas.gauge import ALL_SITES, GREEDY, IN_GROUP, tables
from normgauge.schemas.verdicts import Verdict, summarised
from normgauge.tables import read_metadata

Path = str | os.PathLike[str]
IDENTITY = ("model", "revision", "norm_kind", "placement")
MEASURED = {
    "gauge_table2": "equivalence",
    "gauge_figure1": "equivalence",
    "gauge_table15": "gauge_recovery",
    "gauge_table11": "gauge_recovery",
    "gauge_table13": "gauge_alignment",
    "gauge_cycles": "gauge_holonomy",
    "gauge_table8": "gauge_audit",
    "gauge_carried": "gauge_transport",
}
"""What each table is made from."""


def write_table(table: str, inputs: Sequence[Path], parquet: Path, csv: Path) -> None:
    """Build one table (a key of MEASURED) from the measurement files of checkpoints, in the order given, as parquet and CSV."""
    kind = MEASURED[table]
    rows = []
    for path in inputs:
        metadata = read_metadata(path)
        identity = {key: metadata[key] for key in IDENTITY}
        rows += [{**identity, **row} for row in BUILD[table](tables.read(path, kind))]
    tables.write(parquet, table, rows, {})
    tables.write_csv(csv, table, rows)


# ---------------------------------------------------------------- from measurements to rows


def grouped(rows: Rows, *keys: str) -> list[Rows]:
    """Rows with equal values under the keys together, in order of first appearance."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return list(groups.values())


def _known(rows: Rows, key: str) -> list[float]:
    return [row[key] for row in rows if row[key] is not None]


def cost_of(row: Row) -> str:
    """What a matching maximised, from its method: C, |C|, ±C, or canonical correlation."""
    solver, _, cost = row["method"].partition(" on ")
    return cost or solver


def is_pooled(row: Row) -> bool:
    """Whether all sites of the stream were matched together."""
    return row["site"] == ALL_SITES


def table15(rows: Rows) -> list[Row]:
    """Every way of matching, each part at its largest budget."""
    parts = grouped(rows, "part")
    return _recovered([row for part in parts for row in part if row["tokens"] == max(each["tokens"] for each in part)])


def table11(rows: Rows) -> list[Row]:
    """The residual stream matched in its group at every budget, by all sites together and by each alone."""
    return _recovered([row for row in rows if row["part"] == "residual" and row["match"] == IN_GROUP])


def _recovered(rows: Rows) -> list[Row]:
    """Rows of the recovery summaries: over sites and seeds, by part, way of matching and budget."""
    found = []
    marked = [{**row, "cost": cost_of(row), "pooled": is_pooled(row)} for row in rows]
    for group in grouped(marked, "part", "match", "cost", "pooled", "tokens"):
        signs = _known(group, "sign_accuracy")
        found.append(
            {
                **{key: group[0][key] for key in ("part", "match", "cost", "pooled", "tokens", "width")},
                "sites": _sites(group),
                "seeds": len({row["seed"] for row in group}),
                "permutation_accuracy": mean(row["permutation_accuracy"] for row in group),
                "permutation_accuracy_min": min(row["permutation_accuracy"] for row in group),
                "sign_accuracy": mean(signs) if signs else None,
                "sign_accuracy_min": min(signs, default=None),
                "negative": _mean_known(group, "negative"),
                "uncertain": mean(row["uncertain"] for row in group),
                "certain_accuracy_min": min(_known(group, "certain_accuracy"), default=None),
                **{key: max(_known(group, key), default=None) for key in ("map_error", "query_error", "condition")},
                "certified": mean(row["certified"] for row in group),
            }
        )
    return found


def _sites(group: Rows) -> int:
    """Sites that the rows are about: those averaged before the match, or those matched alone."""
    return group[0]["sites"] if is_pooled(group[0]) else len({row["site"] for row in group})


def table13(rows: Rows) -> list[Row]:
    """Agreement with the match of the other half of the sequences: by all sites together, and means over the sites alone."""
    found = []
    for group in grouped([{**row, "pooled": is_pooled(row)} for row in rows], "other", "match", "pooled", "tokens"):
        shares = ("agreement", "split_half", "certain", "sign_certain", "negative", "unmoved")
        found.append(
            {
                **{key: group[0][key] for key in ("other", "match", "pooled", "width", "tokens", "reference_tokens")},
                "sites": _sites(group),
                **{key: mean(row[key] for row in group) for key in shares},
                **{key: _mean_known(group, key) for key in ("site_agreement", "certain_agreement", "effective_tokens")},
            }
        )
    return found


def _mean_known(rows: Rows, key: str) -> float | None:
    known = _known(rows, key)
    return mean(known) if known else None


def cycles(rows: Rows) -> list[Row]:
    """What cycles of matches bring back: by all sites together, and means over the sites alone."""
    return [
        {
            **{key: group[0][key] for key in ("cycle", "pooled", "width", "tokens")},
            "sites": _sites(group),
            **{key: mean(row[key] for row in group) for key in ("moved", "certain")},
            "certain_moved": _mean_known(group, "certain_moved"),
        }
        for group in grouped([{**row, "pooled": is_pooled(row)} for row in rows], "cycle", "pooled")
    ]


def table8(rows: Rows) -> list[Row]:
    """Overlaps of named coordinates over seeds, by kind of claim."""
    return [
        {
            **{key: group[0][key] for key in ("claim", "site", "top", "width", "chance")},
            "seeds": len(group),
            "raw_overlap": mean(row["raw_overlap"] for row in group),
            "raw_overlap_max": max(row["raw_overlap"] for row in group),
            "mapped_overlap": mean(row["mapped_overlap"] for row in group),
            "mapped_overlap_min": min(row["mapped_overlap"] for row in group),
            "relative_deviation": max(row["relative_deviation"] for row in group),
        }
        for group in grouped(rows, "claim")
    ]


def carried(rows: Rows) -> list[Row]:
    """Artifacts over seeds: the worst after transport, the least wrong of the controls."""
    return [
        {
            "artifact": group[0]["artifact"],
            "seeds": len(group),
            "transported_deviation": max(row["transported_deviation"] for row in group),
            "permutation_deviation": min(row["permutation_deviation"] for row in group),
            "raw_deviation": min(row["raw_deviation"] for row in group),
            "permutation_error": mean(row["permutation_error"] for row in group),
            "predicted_error": mean(row["predicted_error"] for row in group),
            "raw_error": mean(row["raw_error"] for row in group),
            **{key: str(summarised(row[key] for row in group)) for key in ("transported", "permutation_control", "raw_control")},
        }
        for group in grouped(rows, "artifact")
    ]


BUILD: dict[str, Callable[[Rows], Rows]] = {
    "gauge_table2": lambda rows: rows,
    "gauge_figure1": lambda rows: rows,
    "gauge_table15": table15,
    "gauge_table11": table11,
    "gauge_table13": table13,
    "gauge_cycles": cycles,
    "gauge_table8": table8,
    "gauge_carried": carried,
}


# ---------------------------------------------------------------- from rows to drawings


def percent(value: float | None) -> str:
    """A share as a percentage that says 100 only when nothing is left out, and 0 only when nothing is in."""
    if value is None:
        return "—"
    if value in (0, 1):
        return f"{100 * value:.0f}%"
    return f"{min(max(100 * value, 0.1), 99.9):.1f}%"


def _body(texts: Iterable[str]) -> BodyRow:
    return BodyRow(tuple(cell(text) for text in texts))


def _sections(rows: Rows, line: Callable[[Rows], Sequence[str]], *keys: str) -> list[Section]:
    """One section per checkpoint; within it a line per group of rows with equal values under the keys."""
    names = Names(rows, ("revision",))
    found = []
    for members in grouped(rows, "model", "revision"):
        first = members[0]
        heading = plain(f"{names.of(first)}: {first['norm_kind']}, {first['placement']}")
        found.append(Section(heading, [_body(line(group)) for group in grouped(members, *keys)]))
    return found


def _worst(rows: Rows, forward_dtype: str, key: str, admissible: bool) -> float | None:
    """The largest deviation of an admissible gauge, the smallest of a control, over seeds."""
    values = [row[key] for row in rows if row["forward_dtype"] == forward_dtype]
    return (max if admissible else min)(values, default=None)


_SAID = {Verdict.PASSED: "yes", Verdict.FAILED: "NO", Verdict.NO_POWER: "no power"}
"""Whether something is as it must be, in a table's column."""


def draw_table2(rows: Rows) -> Figure:
    """Deviation of the outputs under every change of coordinates. `rows` are of the schema gauge_table2."""
    columns = [
        Column("change of coordinates", align="left", flexible=True),
        Column("in the\ngroup", align="left"),
        Column("float64\nrelative"),
        Column("float32\nlargest, logits"),
        Column("float32\nrelative"),
        Column("as it must"),
    ]

    def line(group: Rows) -> list[str]:
        inside = group[0]["admissible"]
        return [
            plain(group[0]["group"]),
            "yes" if inside else "no",
            number(_worst(group, "float64", "relative_deviation", inside), 2),
            number(_worst(group, "float32", "max_abs_deviation", inside), 2),
            number(_worst(group, "float32", "relative_deviation", inside), 2),
            _SAID[summarised(row["verdict"] for row in group)],
        ]

    drawn = any(row["parameters"] != "stored" for row in rows)
    notes = [
        "Largest difference of the outputs, absolute and over the largest output of its kind; the worst of the seeds. In the "
        "group: the same "
        r"function, float64 within $10^{-10}$ and float32 within $10^{-3}$. Controls outside it must deviate by $10^{-7}$ or more "
        r"in float64; no power: the control predicts an effect below $10^{-8}$ and tells nothing. "
        r"Published for other models, float32: $\leq 1.3\times10^{-4}$.",
        *(
            ["Random initialisations: gains and biases that were constant are drawn, since constant gains admit rotations."]
            if drawn
            else []
        ),
    ]
    return draw_table(
        "Tables 2 and 14. What a transformer does not notice, and what it does", columns, _sections(rows, line, "group"), notes
    )


_COSTS = {"|C|": r"$|C|$", "C": r"$C$", "±C": r"$\pm C$", "canonical correlation": "canonical correlation"}


def _how(row: Row) -> str:
    """How a line was matched: in the group by all sites or by each, or which control it is."""
    return ("all sites together" if row["pooled"] else "each site alone") if row["match"] == IN_GROUP else row["match"]


def draw_table15(rows: Rows) -> Figure:
    """Recovery of recorded gauges by part and cost. `rows` are of the schema gauge_table15."""
    columns = [
        Column("part", align="left"),
        Column("matched", align="left", flexible=True),
        Column("cost", align="left"),
        Column("sites\n× seeds"),
        Column("mean", group="permutation"),
        Column("least", group="permutation"),
        Column("mean", group="sign"),
        Column("least", group="sign"),
        Column("flagged"),
        Column("least of\nthe others"),
        Column("scale or\nvalue map", group="largest error"),
        Column("query\nmap", group="largest error"),
        Column("certified"),
    ]

    def line(group: Rows) -> list[str]:
        (row,) = group
        shares = (
            "permutation_accuracy",
            "permutation_accuracy_min",
            "sign_accuracy",
            "sign_accuracy_min",
            "uncertain",
            "certain_accuracy_min",
        )
        errors = [number(row[key], 1) for key in ("map_error", "query_error")]
        how = _how(row) if row["part"] == "residual" else "in the group"
        start = [row["part"], how, _COSTS[row["cost"]], f"{row['sites']} × {row['seeds']}"]
        certified = "—" if row["part"] == "heads" or row["match"] == GREEDY else percent(row["certified"])
        return [*start, *(percent(row[key]) for key in shares), *errors, certified]

    tokens = sorted({row["tokens"] for row in rows})
    notes = [
        f"Recorded gauges of the whole model, found again from {' or '.join(map(str, tokens))} tokens. flagged: constant, tied or "
        "not clearly ahead of a rival; least of the others: smallest share of unflagged coordinates whose place and sign are right. "
        "Scales and maps are read off the weights. Controls leave the group: without signs a coordinate whose sign is negative is avoided, "
        "half of them where signs are free; free signs find a copy as well, but between unlike LayerNorm models they are of no gauge. "
        "Published at 7B: 49.4% to 49.9% and 50.1% without signs, 100% with; greedy 94.7% and 97.5% at d = 4096.",
    ]
    return draw_table("Table 15. Recovery of recorded gauges", columns, _sections(rows, line, "part", "match", "cost", "pooled"), notes)


def draw_table11(rows: Rows) -> Figure:
    """Recovery against the number of probes. `rows` are of the schema gauge_table11."""
    budgets = sorted({row["tokens"] for row in rows})
    columns = [Column("", align="left")]
    for budget in budgets:
        columns += [Column(head, group=f"{budget} tokens") for head in ("place", "sign", "certified")]
    names = Names(rows, ("revision",))
    sections = []
    for pooled, heading in ((True, "residual stream, all sites together"), (False, "residual stream, each site alone")):
        body = []
        for members in grouped([row for row in rows if row["pooled"] == pooled], "model", "revision"):
            found = {row["tokens"]: row for row in members}
            texts = [names.of(members[0])]
            for budget in budgets:
                keys = ("permutation_accuracy", "sign_accuracy", "certified")
                texts += [percent(found[budget][key]) for key in keys] if budget in found else ["—"] * 3
            body.append(_body(texts))
        if body:
            sections.append(Section(heading, body))
    seeds = ", ".join(sorted({str(row["seeds"]) for row in rows}))
    notes = [
        f"Means over {seeds} seeds (below: and over sites) of matching inside the group that the norm admits. What is missed is flagged: "
        "constant or tied coordinates. Published for TinyLlama: 100% from 22 tokens on.",
    ]
    return draw_table("Tables 3 and 11. How many probes a recorded gauge needs", columns, sections, notes)


def draw_table13(rows: Rows) -> Figure:
    """Stability of natural alignments. `rows` are of the schema gauge_table13."""
    columns = [
        Column("matched with", align="left", flexible=True),
        Column("how", align="left", flexible=True),
        Column("tokens"),
        Column("reference", group="matched alike by other sequences"),
        Column("as many", group="matched alike by other sequences"),
        Column("a site\nalone"),
        Column("certain"),
        Column("of these\nalike"),
        Column("sign\ncertain"),
        Column("negative"),
        Column("own\nnumber"),
    ]

    def line(group: Rows) -> list[str]:
        (row,) = group
        shares = ("agreement", "split_half", "site_agreement", "certain", "certain_agreement", "sign_certain", "negative", "unmoved")
        fewest = row["tokens"] == min(budgets)
        start = [plain(row["other"]) if fewest and row["pooled"] and row["match"] == IN_GROUP else "", _how(row) if fewest else ""]
        return [*start, f"{row['tokens']:,}", *(percent(row[key]) for key in shares)]

    budgets = {row["tokens"] for row in rows}
    notes = [
        "Shares of coordinates (of sites alone: means over residual sites). The match from one half of the sequences gives the same "
        f"target as the match from {max(row['reference_tokens'] for row in rows):,} tokens of the other half, and as the match from as "
        "many; a site alone gives the same as all together. certain: ahead of every rival by more than the sequences leave open, of these "
        "alike: certain in both halves and given one target and sign. LayerNorm streams have one sign for all coordinates; where it is "
        "not certain no coordinate is. The control leaves the group. There is no truth here. Published for a 1.5B pair: 6% at 39 tokens, "
        "94% at 27K, against samples that contain the smaller ones.",
    ]
    sections = _sections(rows, line, "other", "match", "pooled", "tokens")
    return draw_table("Table 13. Stability of natural alignments", columns, sections, notes)


def draw_cycles(rows: Rows) -> Figure:
    """Holonomy of natural alignments. `rows` are of the schema gauge_cycles."""
    columns = [
        Column("cycle", align="left", flexible=True),
        Column("matched by", align="left"),
        Column("tokens"),
        Column("sites"),
        Column("not brought\nback"),
        Column("certain all\nthe way"),
        Column("of these not\nbrought back"),
    ]

    def line(group: Rows) -> list[str]:
        (row,) = group
        shares = (percent(row[key]) for key in ("moved", "certain", "certain_moved"))
        how = "all sites together" if row["pooled"] else "each site alone"
        return [plain(row["cycle"]) if row["pooled"] else "", how, f"{row['tokens']:,}", str(row["sites"]), *shares]

    notes = [
        "Three checkpoints, each matched with the next, the last with the first, every match found on its own: the share of "
        "coordinates that the product of the three does not return to themselves with their sign (of sites alone: means over residual "
        "sites). It is zero for every cycle if and only if each checkpoint has one chart from which all matches follow. Matches lie in "
        "the group that the norm admits.",
    ]
    return draw_table("Holonomy of natural alignments", columns, _sections(rows, line, "cycle", "pooled"), notes)


def draw_table8(rows: Rows) -> Figure:
    """Audit of coordinate names. `rows` are of the schema gauge_table8."""
    columns = [
        Column("claim", align="left", flexible=True),
        Column("site", align="left", flexible=True),
        Column("names"),
        Column("seeds"),
        Column("chance", group="names that agree"),
        Column("raw", group="names that agree"),
        Column("raw, most", group="names that agree"),
        Column("mapped", group="names that agree"),
        Column("mapped, least", group="names that agree"),
        Column("outputs\nmove by"),
    ]

    def line(group: Rows) -> list[str]:
        (row,) = group
        shares = ("chance", "raw_overlap", "raw_overlap_max", "mapped_overlap", "mapped_overlap_min")
        start = [plain(row["claim"]), plain(row["site"]), f"{row['top']} of {row['width']}", str(row["seeds"])]
        return [*start, *(percent(row[key]) for key in shares), number(row["relative_deviation"], 1)]

    notes = [
        "The coordinates that score highest, in the model and in its copy under a recorded gauge (float32): by their numbers "
        "(raw), and after "
        "the gauge is applied to the names (mapped). attribution: gradient times activation, of the likeliest class's log-probability "
        "(without a head: of the last state's squared length). difference of means: between two sets of inputs, as for a "
        "steering direction.",
    ]
    return draw_table("Table 8. Coordinate names are not the model's", columns, _sections(rows, line, "claim"), notes)


def draw_carried(rows: Rows) -> Figure:
    """Artifacts carried with a gauge. `rows` are of the schema gauge_carried."""
    columns = [
        Column("artifact", align="left"),
        Column("seeds"),
        Column("transported", group="outputs deviate by"),
        Column("permutation only", group="outputs deviate by"),
        Column("not moved", group="outputs deviate by"),
        Column("measured", group=r"$|T_Ga-T_Pa|^2/|a|^2$"),
        Column("predicted", group=r"$|T_Ga-T_Pa|^2/|a|^2$"),
        Column("transported", group="as it must"),
        Column("permutation", group="as it must"),
        Column("not moved", group="as it must"),
    ]

    def line(group: Rows) -> list[str]:
        (row,) = group
        numbers = ("transported_deviation", "permutation_deviation", "raw_deviation", "permutation_error", "predicted_error")
        verdicts = (_SAID[Verdict(row[key])] for key in ("transported", "permutation_control", "raw_control"))
        return [row["artifact"], str(row["seeds"]), *(number(row[key], 2) for key in numbers), *verdicts]

    notes = [
        "Drawn artifacts in the middle block, and states of optimizers after three steps on its parameters, which act by one more step; "
        "float64 outputs against the model's with the artifact before its gauge, relative: the largest over seeds after transport, the "
        "smallest by the permutation alone and unmoved. As it must: transported within $10^{-10}$, the two controls $10^{-7}$ or more. "
        "The permutation alone costs four times the energy (of a state: of its averages of gradients) on negative coordinates, 2 on "
        "average over free signs; where all signs are positive it is the gauge itself, and as a control it has no power.",
    ]
    return draw_table("Artifacts carried along with a gauge", columns, _sections(rows, line, "artifact"), notes)


_INSIDE, _OUTSIDE = style.TRAINED, style.DEVIATES
_EDGES = 1e-17, 1e2


def prepare_deviations(axes: Axes) -> None:
    """The axis of relative deviations, with the float64 tolerance and what a control must exceed."""
    axes.set(xscale="log", xlim=_EDGES)
    axes.set_xlabel("relative deviation of the outputs", labelpad=2)
    for value in (1e-10, 1e-7):
        axes.axvline(value, color=GREY, linewidth=0.6, linestyle=(0, (3, 2)), zorder=1)


def plot_deviations(axes: Axes, place: float, group: Rows) -> None:
    """The markers of one change of coordinates at height `place`: float64 full, float32 hollow, controls as triangles, as crosses where
    they have no power."""
    inside = group[0]["admissible"]
    color, marker = (_INSIDE, "o") if inside else (_OUTSIDE, "^")
    if summarised(row["verdict"] for row in group) == Verdict.NO_POWER:
        color, marker = GREY, "x"
    axes.axhline(place, color="#dddddd", linewidth=0.4, zorder=0)
    for forward_dtype, face in (("float64", color), ("float32", "white")):
        value = _worst(group, forward_dtype, "relative_deviation", inside)
        if value is not None:
            shown = min(max(value, _EDGES[0]), _EDGES[1])
            axes.plot(shown, place, linestyle="none", marker=marker, color=color, markerfacecolor=face, markersize=4.5, clip_on=False)


def deviation_handles() -> list[Line2D]:
    """The legend of `plot_deviations`."""
    looks = (
        ("o", _INSIDE, _INSIDE, "in the group, float64"),
        ("o", _INSIDE, "white", "in the group, float32"),
        ("^", _OUTSIDE, _OUTSIDE, "control, float64"),
    )
    return [
        Line2D([], [], linestyle="none", marker=marker, color=color, markerfacecolor=face, markersize=4.5, label=label)
        for marker, color, face, label in looks
    ]


def draw_figure1(rows: Rows) -> Figure:
    """Relative deviations on a logarithmic axis, a line per change of coordinates. `rows` are of the schema gauge_figure1."""
    names = Names(rows, ("revision",))
    blocks = [(names.of(members[0]), grouped(members, "group")) for members in grouped(rows, "model", "revision")]
    lines = sum(len(groups) + 1 for _, groups in blocks)
    note = (
        r"Largest relative deviation of the outputs over seeds (controls: the smallest). Grey lines: what counts as the same function in "
        r"float64, and the thousandfold that a control must exceed. Values of 0 stand at the left edge."
        + (" Crosses: controls without power." if any(row["verdict"] == Verdict.NO_POWER for row in rows) else "")
    )
    full, row_height, top = 72 * style.WIDTH, 10.5, 34.0
    with matplotlib.rc_context(style.RC):
        text = Ruler().wrap(note, full - 10, style.NOTE)
        foot = 34.0 + 10 * len(text)
        height = top + row_height * lines + foot
        figure = Figure(figsize=(style.WIDTH, height / 72))
        left = 212.0
        axes = figure.add_axes((left / full, foot / height, (full - left - 8) / full, row_height * lines / height))
        axes.set(ylim=(lines - 0.5, -0.5), yticks=[])
        prepare_deviations(axes)
        place = 0
        for name, groups in blocks:
            figure.text(5 / full, 1 - (top + row_height * (place + 0.75)) / height, name, weight="bold", ha="left", va="baseline")
            place += 1
            for group in groups:
                baseline = 1 - (top + row_height * (place + 0.75)) / height
                figure.text(12 / full, baseline, plain(group[0]["group"]), ha="left", va="baseline", size=style.NOTE)
                axes.axhline(place, color="#dddddd", linewidth=0.4, zorder=0)
                plot_deviations(axes, place, group)
                place += 1
        figure.text(5 / full, 1 - 11 / height, "Figure 1. Inside and outside the group", weight="bold", ha="left", va="baseline")
        anchor = (5 / full, 1 - 16 / height)
        figure.legend(
            handles=deviation_handles(), loc="upper left", bbox_to_anchor=anchor, ncols=3, frameon=False, borderaxespad=0, borderpad=0
        )
        for below, sentence in enumerate(text):
            figure.text(5 / full, (foot - 34 - 10 * below) / height, sentence, ha="left", va="baseline", size=style.NOTE)
        return figure


DRAWINGS: dict[str, Callable[[Rows], Figure]] = {
    "gauge_table2": draw_table2,
    "gauge_figure1": draw_figure1,
    "gauge_table15": draw_table15,
    "gauge_table11": draw_table11,
    "gauge_table13": draw_table13,
    "gauge_cycles": draw_cycles,
    "gauge_table8": draw_table8,
    "gauge_carried": draw_carried,
}
