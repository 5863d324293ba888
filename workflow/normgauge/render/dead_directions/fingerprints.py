"""Table 2: the residual-stream fingerprint, with re-initialised twins and published values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from matplotlib.figure import Figure

from normgauge.render import style
from normgauge.render.dead_directions.sheet import (
    UNCERTAINTY,
    between,
    blank,
    closing,
    counts_note,
    deviating,
    flags_in_words,
    four,
    printed,
    sections,
    uncertain,
)
from normgauge.render.declared import Field, table
from normgauge.render.formats import NOTHING, decimals, near_one, number
from normgauge.render.labels import Names, input_notes, seed_count, weight_notes
from normgauge.render.rows import Row, Rows
from normgauge.render.style import GREY, SIGMA
from normgauge.render.text import Footnotes, plain
from normgauge.render.typeset import Cell, Line, cell, quiet

_TWIN = "re-initialised"


def table2(rows: Rows) -> Figure:
    """Residual-stream fingerprint: a row per stack, the re-initialised twins and the published
    values under it. `rows`: schema table2.
    """
    notes, names = Footnotes(), Names(rows)

    def name(row: Row) -> Cell:
        label = cell(names.of(row) + notes.mark(_marks(row)))
        seeds = f"random initialisation, {seed_count(row['seeds'])}"
        return label + quiet(seeds) if row["seeds"] else label

    def twin(row: Row) -> str:
        return f"{_TWIN}, {seed_count(row['seeds'])}{notes.mark(_marks(row))}"

    fields = (
        Field("model", name, "", "left", True, {_TWIN: twin, "published": lambda row: "published"}),
        Field("objective", lambda row: plain(row["objective"] or NOTHING), "", "left", True),
        _size("$L$", "blocks"),
        _size("$h$", "width"),
        Field(
            "$n/d$",
            _samples,
            under={"published": lambda row: blank(row["published_n_over_d"], printed)},
        ),
        Field(
            rf"body ${SIGMA}/\!\sqrt{{n}}$",
            _body,
            align="center",
            under={_TWIN: _greyed(_body), "published": _published_body},
        ),
        Field(
            "behaviour",
            _behaviour,
            "",
            "left",
            True,
            {
                _TWIN: _greyed(_behaviour),
                "published": lambda row: row["published_behaviour_smallest_active"] or "",
            },
        ),
        _cosine(r"$|\cos(u_\perp,\gamma^{-1})|$", "post_norm_cos_gamma_inv"),
        _cosine(r"$|\cos(u_\perp,\mathbf{1})|$", "post_norm_cos_ones"),
    )
    return table(
        "Table 2. Residual-stream fingerprint",
        fields,
        sections(rows),
        [*_notes(rows), closing(rows)],
        lines=_lines,
        footnotes=notes,
    )


def _lines(row: Row) -> list[str]:
    if row["kind"] == _TWIN:
        return [_TWIN]
    return ["", "published"] if row["status"] != "not published" else [""]


def _marks(row: Row) -> list[str]:
    """What the footnotes say of a row."""
    return [
        *([] if row["kind"] == _TWIN else weight_notes(row)),
        *input_notes(row),
        *_disagreements(row),
        *_other_rank(row),
        *_undetermined_bottom(row),
        *map(_failure, row["protocol"]),
        *flags_in_words(row["flags"]),
    ]


def _marked(row: Row, text: str, *names: str) -> Cell:
    """A value, marked where one of these columns differs from the published one."""
    return deviating(text) if set(row["deviations"]).intersection(names) else cell(text)


def _greyed(of: Callable[[Row], Cell]) -> Callable[[Row], Cell]:
    """The same cell in the small grey type of a subordinate line."""
    return lambda row: tuple(
        replace(line, size=min(line.size, style.SMALL), color=GREY) for line in of(row)
    )


def _size(head: str, key: str) -> Field:
    return Field(
        head,
        lambda row: _marked(row, str(row[key]), key),
        under={"published": lambda row: blank(row[f"published_{key}"], str)},
    )


def _behaviour(row: Row) -> Cell:
    return _marked(row, plain(row["behaviour"]), "behaviour_smallest_active")


def _cosine(head: str, key: str) -> Field:
    def of(row: Row) -> Cell:
        return _marked(row, near_one(row[key], 4), key) + uncertain(row, key, four)

    def published(row: Row) -> str:
        return blank(row[f"published_{key}"], lambda value: decimals(value, 3))

    return Field(head, of, under={_TWIN: _greyed(of), "published": published})


def _body(row: Row) -> Cell:
    """The smallest and the largest of the body, over sqrt(n)."""
    low, high = (row[f"body_sigma_{end}_per_sqrt_n"] for end in ("low", "high"))
    text = "below floor" if low is None else between(low, high)
    return _marked(row, text, "body_sigma_low", "body_sigma_high") + _uncertain_body(row)


def _published_body(row: Row) -> str:
    low, high = (row[f"published_body_sigma_{end}_per_sqrt_n"] for end in ("low", "high"))
    return "" if low is None else between(low, high)


def _uncertain_body(row: Row) -> Cell:
    """The same under table 2's two values of sigma / sqrt(n)."""
    names = ("body_sigma_low", "body_sigma_high")
    scale = row["n"] ** -0.5
    errors = [row[f"{name}_se"] for name in names]
    ranges = [(row[f"{name}_seed_low"], row[f"{name}_seed_high"]) for name in names]
    texts = (
        [", ".join(f"± {number(error * scale, 1)}" for error in errors)]
        if None not in errors
        else []
    )
    if all(low is not None and low < high for low, high in ranges):
        texts.append(
            ", ".join(f"[{number(low * scale)}, {number(high * scale)}]" for low, high in ranges)
        )
    return tuple(Line(each, size=style.NOTE, color=GREY) for each in texts)


def _samples(row: Row) -> Cell:
    """n/d, and under it the different samples of X_0 per coordinate where those are fewer."""
    first, distinct = cell(number(row["n_over_d"], 2)), row["distinct_over_d"]
    if distinct is None or distinct > 0.9 * row["n_over_d"]:
        return first
    return (*first, Line(f"{number(distinct, 2)} different", size=style.NOTE, color=GREY))


def _disagreements(row: Row) -> list[str]:
    if row["norm_kinds_agree"]:
        return []
    return [
        f"the activations read as {row['norm_kind_activations']}, the parameters as "
        f"{row['norm_kind_parameters']}"
    ]


def _other_rank(row: Row) -> list[str]:
    """Where the published statistic, which takes each block's own smallest active value, calls the
    profile otherwise.
    """
    if row["behaviour"] == row["behaviour_smallest_active"]:
        return []
    rank = "" if row["fixed_rank"] is None else f"; $X_0$ has rank $r_0={row['fixed_rank']}$"
    return [
        f"{plain(row['behaviour_smallest_active'])} by each block's own smallest active value, as "
        f"published{rank}"
    ]


def _failure(entry: str) -> str:
    """A failed check of the measurement, or a finding about the model: docs/dead_directions.md
    tells them apart.
    """
    finding = any(f"protocol:{name}" in entry for name in ("rms-alignment", "deeper-direction"))
    kind = "finding" if finding else "protocol check failed"
    return f"{kind}: {plain(entry)}"


def _undetermined_bottom(row: Row) -> list[str]:
    dimension = row["post_norm_null_dimension"]
    if dimension is None or dimension < 2:
        return []
    return [
        rf"{dimension} directions lie below the floor; the cosines are those of $\gamma^{{-1}}$ "
        rf"and $\mathbf{{1}}$ with their span"
    ]


def _notes(rows: Rows) -> list[str]:
    """What the columns are."""
    return [
        rf"body ${SIGMA}/\!\sqrt{{n}}$: smallest and largest over the block outputs "
        r"$X_1,\ldots,X_L$ of the smallest active singular "
        rf"value of the centred activations, over $\sqrt{{n}}$: singular values grow with the "
        r"number of tokens, and the published "
        rf"ones belong to another number. behaviour: of ${SIGMA}(X_\ell)/{SIGMA}(X_0)$ along the "
        r"depth, $r_0$ the rank of $X_0$. "
        r"Cosines: of the bottom singular direction $u_\perp$ of the centred activations after the "
        r"terminal norm (post-norm models: at "
        f"the last block output). {counts_note(rows)}",
        "re-initialised: the same architecture from fresh seeds; medians over them, words counted "
        "where seeds differ. "
        f"different: samples of $X_0$ that differ, per coordinate. {UNCERTAINTY}",
    ]
