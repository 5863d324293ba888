"""The typeset tables, drawn from rows of the result tables alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from normgauge.render import style
from normgauge.render.labels import Names, Row, Rows, arithmetic, seed_count, token_count
from normgauge.render.style import DEVIATES, DIRECTION, FORM, GREY, SIGMA, Footnotes, decimals, input_notes, number, plain, weight_notes
from normgauge.render.tables import mostly_below_floor
from normgauge.render.typeset import BodyRow, Cell, Column, Line, Section, cell, draw_table, quiet

_DASH = "— not defined or not measured for this model."
_UNCERTAINTY = (
    "±: one standard error over sequences, by the jackknife over groups of them; none where rounding hides it. "
    "[ ] beneath: smallest and largest over seeds."
)
_DEVIATION = "* bold: differs from the published value by more than the tolerance in config/published.yaml."


def table1(rows: Rows) -> Figure:
    """Schur delta at the query/key/value input, random and trained, beside the published values. `rows` are of the schema table1."""
    notes, names = Footnotes(), Names(rows, ("revision", "stack"))
    columns = [
        Column("model", align="left", flexible=True),
        Column("$h$"),
        Column("$n$"),
        Column("forward", align="left"),
        Column("seeds"),
        Column(r"$\Delta_\gamma$ at random init.", align="left"),
        Column("measured", r"$\Delta_\gamma$ trained", "left"),
        Column("predicted", r"$\Delta_\gamma$ trained", "left"),
        Column(r"$|\cos(w,u)|$"),
    ]

    def body(row: Row) -> list[BodyRow]:
        cells = (
            cell(names.of(row) + notes.mark([*weight_notes(row), *input_notes(row)])),
            cell(str(row["width"])),
            cell(token_count(row["n"])),
            cell(row["forward_dtype"]),
            cell(str(row["random_seeds"] or "—")),
            _delta_cell(row, "random"),
            _delta_cell(row, "trained"),
            _predicted_delta(row, "trained"),
            cell(decimals(row["trained_bottom_cos_gamma_inv"], 3)),
        )
        published = [_published_delta(row, part) for part in ("random", "trained")]
        if not any(published):
            return [BodyRow(cells)]
        texts = ("published", *[""] * 4, *published, "", "")
        return [BodyRow(cells), BodyRow(tuple(quiet(text) for text in texts), subordinate=True)]

    text = [
        rf"Median over blocks (and seeds) of $\Delta_\gamma=1-\lambda_{{\min}}(A)/{FORM}$, ${DIRECTION}$, at the input of the "
        f"query/key/value maps [quartiles]; below it, in grey, $1-\\Delta_\\gamma$. {_counts_note(rows)}",
        r"predicted: behind a LayerNorm, $1-1/(1+T^2)$ with the median of $T^2=m^\mathrm{T}C^{+}\!m$, $m$ and $C$ being the mean and the "
        r"covariance of the norm's output. $\Delta_\gamma$ near 1 says that $T^2$ is large, not that a direction of $C$ lies deeper "
        "than $u$. $w$: bottom eigenvector of $A$, trained.",
        f"below floor: in at least half of the pooled values ${FORM}$ lies at or below the rounding floor of the forward pass or of "
        f"the accumulation; the reading is noise and is printed only to show it, with the medians of ${FORM}$ and of the floor.",
    ]
    if any(row[f"{part}_lower_bound"] for row in rows for part in ("random", "trained")):
        text.append(r"≥: $\lambda_{\min}$ lies below floor in some of the values; they count as their lower bounds, and the median is one.")
    text.append(_UNCERTAINTY)
    if any(0 < (row[f"{part}_below_floor"] or 0) < 0.5 for row in rows for part in ("random", "trained")):
        text.append("A percentage after a value is the share of the pooled values that lie below floor.")
    return draw_table(
        r"Table 1. Schur ratio $\Delta_\gamma$ along the inverse-gain direction",
        columns,
        _sections(rows, body),
        text + _closing(rows, notes),
    )


def _delta_cell(row: Row, part: str) -> Cell:
    median, low, high = (row[f"{part}_{statistic}"] for statistic in ("median", "low", "high"))
    if median is None:
        return cell("—")
    bounded = row[f"{part}_lower_bound"]
    value = f"{_bound(median, 4) if bounded else decimals(median, 4)} [{decimals(low, 3)}, {decimals(high, 3)}]"
    if mostly_below_floor(row, part):
        form, floor = number(row[f"{part}_quadratic_form"], 2), number(row[f"{part}_floor"], 2)
        reading = (f"reads {value}", f"${FORM}$ {form}, floor {floor}")
        return (Line("below floor", slant="italic"), *(Line(text, size=style.NOTE, color=GREY) for text in reading))
    share = row[f"{part}_below_floor"]
    text = value + (f" {100 * share:.0f}%" if share else "")
    first = _deviating(text) if row[f"{part}_status"] == "deviates" else cell(text)
    return first + _ratio(median, "≤ " if bounded else "") + _uncertain(row, f"{part}_median", lambda end: decimals(end, 4))


def _bound(value: float, places: int) -> str:
    """A lower bound, rounded down, so that it stays one."""
    return f"≥ {decimals(math.floor(value * 10**places) / 10**places, places)}"


def _ratio(delta: float, prefix: str = "") -> Cell:
    """1 - delta on a line of its own, where the decimals of delta do not show it."""
    return (Line(prefix + number(1 - delta), size=style.NOTE, color=GREY),) if delta > 0.99 else ()


def _predicted_delta(row: Row, part: str) -> Cell:
    predicted = row[f"{part}_predicted"]
    return cell("—") if predicted is None else cell(decimals(predicted, 4)) + _ratio(predicted) + _uncertain(row, f"{part}_predicted")


def _uncertain(row: Row, name: str, text: Callable[[float], str] = number) -> Cell:
    """What stands under a number: its standard error over sequences, and its range over seeds where it is pooled from several."""
    error, low, high = row.get(f"{name}_se"), row.get(f"{name}_seed_low"), row.get(f"{name}_seed_high")
    texts = [] if error is None or row[name] is None else [f"± {number(error, 1)}"]
    if low is not None and high is not None and low < high:
        texts.append(f"[{text(low)}, {text(high)}]")
    return tuple(Line(each, size=style.NOTE, color=GREY) for each in texts)


def _uncertain_body(row: Row) -> Cell:
    """The same under table 2's two values of sigma / sqrt(n)."""
    names = ("body_sigma_low", "body_sigma_high")
    scale = row["n"] ** -0.5
    errors = [row[f"{name}_se"] for name in names]
    ranges = [(row[f"{name}_seed_low"], row[f"{name}_seed_high"]) for name in names]
    texts = [", ".join(f"± {number(error * scale, 1)}" for error in errors)] if None not in errors else []
    if all(low is not None and low < high for low, high in ranges):
        texts.append(", ".join(f"[{number(low * scale)}, {number(high * scale)}]" for low, high in ranges))
    return tuple(Line(each, size=style.NOTE, color=GREY) for each in texts)


def _samples(row: Row) -> Cell:
    """n/d, and under it the different samples of X_0 per coordinate where those are fewer."""
    first, distinct = cell(number(row["n_over_d"], 2)), row["distinct_over_d"]
    if distinct is None or distinct > 0.9 * row["n_over_d"]:
        return first
    return (*first, Line(f"{number(distinct, 2)} different", size=style.NOTE, color=GREY))


def _deviating(text: str) -> Cell:
    return cell(text, weight="bold", color=DEVIATES, hanging="*")


def _published_delta(row: Row, part: str) -> str:
    median, low, high = (row.get(f"published_{part}_{statistic}") for statistic in ("median", "low", "high"))
    if median is None:
        return ""
    return decimals(median, 3) + ("" if low is None else f" [{decimals(low, 2)}, {decimals(high, 2)}]")


def table2(rows: Rows) -> Figure:
    """Residual-stream fingerprint: a row per stack, the re-initialised twins and the published values under it. `rows`: schema table2."""
    notes, names = Footnotes(), Names(rows)
    columns = [
        Column("model", align="left", flexible=True),
        Column("objective", align="left", flexible=True),
        Column("$L$"),
        Column("$h$"),
        Column("$n/d$"),
        Column(rf"body ${SIGMA}/\!\sqrt{{n}}$", align="center"),
        Column("behaviour", align="left", flexible=True),
        Column(r"$|\cos(u_\perp,\gamma^{-1})|$"),
        Column(r"$|\cos(u_\perp,\mathbf{1})|$"),
    ]

    def body(row: Row) -> list[BodyRow]:
        weights = [] if row["kind"] == "re-initialised" else weight_notes(row)
        failures = list(map(_failure, row["protocol"]))
        marks = notes.mark(
            [
                *weights,
                *input_notes(row),
                *_disagreements(row),
                *_other_rank(row),
                *_undetermined_bottom(row),
                *failures,
                *map(_flag, row["flags"]),
            ]
        )
        deviates = set(row["deviations"])

        def value(text: str, *names: str) -> Cell:
            return _deviating(text) if deviates.intersection(names) else cell(text)

        low, high = (row[f"body_sigma_{end}_per_sqrt_n"] for end in ("low", "high"))
        sigma = "below floor" if low is None else _range(low, high)

        def cosine(name: str) -> Cell:
            return value(decimals(row[name], 4), name) + _uncertain(row, name, lambda end: decimals(end, 4))

        measured = (
            value(sigma, "body_sigma_low", "body_sigma_high") + _uncertain_body(row),
            value(plain(row["behaviour"]), "behaviour_smallest_active"),
            cosine("post_norm_cos_gamma_inv"),
            cosine("post_norm_cos_ones"),
        )
        if row["kind"] == "re-initialised":
            twin = quiet(f"re-initialised, {seed_count(row['seeds'])}{marks}")
            greyed = tuple(tuple(replace(line, size=min(line.size, style.SMALL), color=GREY) for line in each) for each in measured)
            return [BodyRow((twin, quiet(""), quiet(""), quiet(""), quiet(""), *greyed), subordinate=True)]
        label = cell(names.of(row) + marks)
        if row["seeds"]:
            label += quiet(f"random initialisation, {seed_count(row['seeds'])}")
        shape = (
            cell(plain(row["objective"] or "—")),
            value(str(row["blocks"]), "blocks"),
            value(str(row["width"]), "width"),
            _samples(row),
        )
        lines = [BodyRow((label, *shape, *measured))]
        if row["status"] != "not published":
            lines.append(_published_table2(row))
        return lines

    text = [
        rf"body ${SIGMA}/\!\sqrt{{n}}$: smallest and largest over the block outputs $X_1,\ldots,X_L$ of the smallest active singular "
        rf"value of the centred activations, over $\sqrt{{n}}$: singular values grow with the number of tokens, and the published "
        rf"ones belong to another number. behaviour: of ${SIGMA}(X_\ell)/{SIGMA}(X_0)$ along the depth, $r_0$ the rank of $X_0$. "
        r"Cosines: of the bottom singular direction $u_\perp$ of the centred activations after the terminal norm (post-norm models: at "
        f"the last block output). {_counts_note(rows)}",
        "re-initialised: the same architecture from fresh seeds; medians over them, words counted where seeds differ. "
        f"different: samples of $X_0$ that differ, per coordinate. {_UNCERTAINTY}",
    ]
    return draw_table("Table 2. Residual-stream fingerprint", columns, _sections(rows, body), text + _closing(rows, notes))


def _published_table2(row: Row) -> BodyRow:
    low, high = (row[f"published_body_sigma_{end}_per_sqrt_n"] for end in ("low", "high"))
    texts = (
        "published",
        "",
        _blank(row["published_blocks"], str),
        _blank(row["published_width"], str),
        _blank(row["published_n_over_d"], _printed),
        "" if low is None else _range(low, high),
        row["published_behaviour_smallest_active"] or "",
        _blank(row["published_post_norm_cos_gamma_inv"], lambda value: decimals(value, 3)),
        _blank(row["published_post_norm_cos_ones"], lambda value: decimals(value, 3)),
    )
    return BodyRow(tuple(quiet(text) for text in texts), subordinate=True)


def _disagreements(row: Row) -> list[str]:
    if row["norm_kinds_agree"]:
        return []
    return [f"the activations read as {row['norm_kind_activations']}, the parameters as {row['norm_kind_parameters']}"]


def _other_rank(row: Row) -> list[str]:
    """Where the published statistic, which takes each block's own smallest active value, calls the profile otherwise."""
    if row["behaviour"] == row["behaviour_smallest_active"]:
        return []
    rank = "" if row["fixed_rank"] is None else f"; $X_0$ has rank $r_0={row['fixed_rank']}$"
    return [f"{plain(row['behaviour_smallest_active'])} by each block's own smallest active value, as published{rank}"]


def _failure(entry: str) -> str:
    """A failed check of the measurement, or a finding about the model: docs/method.md tells them apart."""
    finding = any(f"protocol:{name}" in entry for name in ("rms-alignment", "deeper-direction"))
    kind = "finding" if finding else "protocol check failed"
    return f"{kind}: {plain(entry)}"


def _undetermined_bottom(row: Row) -> list[str]:
    dimension = row["post_norm_null_dimension"]
    if dimension is None or dimension < 2:
        return []
    return [rf"{dimension} directions lie below the floor; the cosines are those of $\gamma^{{-1}}$ and $\mathbf{{1}}$ with their span"]


def trained_vs_random(rows: Rows) -> Figure:
    """Growth of the smallest active singular value, trained against re-initialised. `rows` are of the schema trained_vs_random."""
    notes, names = Footnotes(), Names(rows)
    maximum, minimum = r"largest $r_\ell$", r"smallest $r_\ell$"
    terminal, cosine = r"terminal-norm $r$", r"$|\cos(u_\perp,\gamma^{-1})|$"
    columns = [
        Column("model", align="left", flexible=True),
        Column("$L$"),
        Column("seeds"),
        *(Column(head, group) for group in (maximum, minimum, terminal, cosine) for head in ("trained", "re-init.")),
    ]

    def body(row: Row) -> list[BodyRow]:
        deviates = set(row["deviations"])

        def value(name: str, text: Callable[[float], str] = number) -> Cell:
            shown = "—" if row[name] is None else text(row[name])
            return (_deviating(shown) if name in deviates else cell(shown)) + _uncertain(row, name, text)

        def four(value: float) -> str:
            return decimals(value, 4)

        marks = notes.mark([*weight_notes(row), *input_notes(row), *map(_flag, row["notes"])])
        cells = (
            cell(names.of(row) + marks),
            cell(str(row["blocks"])),
            cell(str(row["random_seeds"] or "—")),
            value("trained_max_ratio"),
            value("random_max_ratio"),
            value("trained_min_ratio"),
            value("random_min_ratio"),
            value("trained_post_norm_ratio"),
            value("random_post_norm_ratio"),
            value("trained_cos_gamma_inv", four),
            value("random_cos_gamma_inv", four),
        )
        lines = [BodyRow(cells)]
        if _differs_at_fixed_rank(row):
            names_ = [f"{part}_fixed_rank_{end}_ratio" for end in ("max", "min") for part in ("trained", "random")]
            fixed = [quiet(number(row[name])) + _uncertain(row, name) for name in names_]
            blank = quiet("")
            label = quiet(r"at the rank $r_0$ of $X_0$")
            lines.append(BodyRow((label, blank, blank, *fixed, *[blank] * 4), subordinate=True))
        if row["status"] != "not published":
            published = [
                _blank(row.get(f"published_{name}"), _printed)
                for name in ("trained_max_ratio", "random_max_ratio", None, None, "trained_post_norm_ratio", "random_post_norm_ratio")
            ]
            texts = ("published", _blank(row["published_blocks"], str), "", *published, "", "")
            lines.append(BodyRow(tuple(quiet(text) for text in texts), subordinate=True))
        return lines

    text = [
        rf"$r_\ell={SIGMA}(X_\ell)/{SIGMA}(X_0)$: smallest active singular value of the centred block outputs over that of the embedding. "
        "re-init.: the same architecture from fresh seeds, medians over them. In post-norm models every block ends "
        f"in a norm, so the ratios describe the norms and do not test depth invariance. {_UNCERTAINTY} {_counts_note(rows)}"
    ]
    return draw_table("Trained against re-initialised", columns, _sections(rows, body), text + _closing(rows, notes))


def _differs_at_fixed_rank(row: Row) -> bool:
    """Whether the corollary's ratio, of the same singular value at every block, is not the published one."""
    pairs = [
        (row[f"{part}_{end}_ratio"], row[f"{part}_fixed_rank_{end}_ratio"]) for end in ("max", "min") for part in ("trained", "random")
    ]
    return any(own != fixed for own, fixed in pairs)


def _sections(rows: Rows, body: Callable[[Row], list[BodyRow]]) -> list[Section]:
    """Rows grouped by norm kind and placement, in the order in which these first appear."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{_norm_kind(row)}, {row['placement']}", []).append(row)
    return [Section(heading, [line for row in members for line in body(row)]) for heading, members in groups.items()]


def _norm_kind(row: Row) -> str:
    return row["norm_kind"]


def _closing(rows: Rows, notes: Footnotes) -> list[str]:
    general = [_DASH, *([_DEVIATION] if any(row["deviations"] for row in rows) else [])]
    return [" ".join(general), *([notes.text()] if notes.text() else [])]


def _counts_note(rows: Rows) -> str:
    tokens = sorted({row["n"] for row in rows})
    counts = " and ".join(map(token_count, tokens)) if len(tokens) < 3 else f"{token_count(tokens[0])} to {token_count(tokens[-1])}"
    return f"$n$ = {counts} tokens; {arithmetic(rows)}."


def _range(low: float, high: float) -> str:
    return f"{number(low)} – {number(high)}"


def _printed(value: float) -> str:
    """A published number as its page prints it, without digits of our own."""
    return f"{value:g}"


def _blank(value: Any, text: Callable[[Any], str]) -> str:
    return "" if value is None else text(value)


def _flag(flag: str) -> str:
    return plain(flag.replace("_", " "))
