"""The table trained_vs_random: growth along the depth, trained against re-initialised."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from normgauge.render.dead_directions.sheet import (
    UNCERTAINTY,
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
from normgauge.render.formats import NOTHING, number
from normgauge.render.labels import Names, input_notes, weight_notes
from normgauge.render.rows import Row, Rows
from normgauge.render.style import SIGMA
from normgauge.render.text import Footnotes
from normgauge.render.typeset import Cell, cell, quiet

_HALVES = {"trained": "trained", "random": "re-init."}
_FIXED, _FIRST, _SMALLEST, _PUBLISHED = (
    r"at the rank $r_0$ of $X_0$",
    "over $X_1$",
    "over the smallest",
    "published",
)
"""The subordinate lines: our values at a fixed rank and over other references than the embedding,
and the published ones.
"""


def trained_vs_random(rows: Rows) -> Figure:
    """Growth of the smallest active singular value, trained against re-initialised. `rows` are of
    the schema trained_vs_random.
    """
    notes, names = Footnotes(), Names(rows)

    def name(row: Row) -> str:
        notes_of = (weight_notes(row), input_notes(row), _reproduced(row))
        flags = flags_in_words(row["notes"])
        return names.of(row) + notes.mark([*(note for each in notes_of for note in each), *flags])

    labels = {label: _said(label) for label in (_FIXED, _FIRST, _SMALLEST, _PUBLISHED)}
    fields = (
        Field("model", name, "", "left", True, labels),
        Field(
            "$L$",
            lambda row: str(row["blocks"]),
            under={_PUBLISHED: lambda row: blank(row["published_blocks"], str)},
        ),
        Field("seeds", lambda row: str(row["random_seeds"] or NOTHING)),
        *_pair(
            r"largest $r_\ell$",
            "max_ratio",
            {
                _FIXED: "fixed_rank_max_ratio",
                _FIRST: "first_block_max_ratio",
                _SMALLEST: "body_ratio",
            },
            published=True,
        ),
        *_pair(r"smallest $r_\ell$", "min_ratio", {_FIXED: "fixed_rank_min_ratio"}),
        *_pair(
            r"terminal-norm $r$",
            "post_norm_ratio",
            {_FIRST: "first_block_post_norm_ratio"},
            published=True,
        ),
        *_pair(r"$|\cos(u_\perp,\gamma^{-1})|$", "cos_gamma_inv", {}, text=four),
    )
    return table(
        "Trained against re-initialised",
        fields,
        sections(rows),
        [*_notes(rows), closing(rows)],
        lines=_lines,
        footnotes=notes,
    )


def _lines(row: Row) -> list[str]:
    lines = ["", _FIXED] if _differs_at_fixed_rank(row) else [""]
    if any(row[f"{half}_status"] != "not published" for half in _HALVES):
        lines += [_FIRST, _SMALLEST, _PUBLISHED]
    return lines


def _said(text: str) -> Callable[[Row], str]:
    return lambda row: text


def _pair(
    group: str,
    key: str,
    others: dict[str, str],
    published: bool = False,
    text: Callable[[float], str] = number,
) -> list[Field]:
    """The two columns of a ratio, trained and re-initialised, with its other readings under it."""
    return [_half(half, group, key, others, published, text) for half in _HALVES]


def _half(
    half: str,
    group: str,
    key: str,
    others: dict[str, str],
    published: bool,
    text: Callable[[float], str],
) -> Field:
    column = f"{half}_{key}"

    def of(row: Row) -> Cell:
        shown = NOTHING if row[column] is None else text(row[column])
        first = deviating(shown) if column in row["deviations"] else cell(shown)
        return first + uncertain(row, column, text)

    def other(name: str) -> Callable[[Row], Cell]:
        return lambda row: quiet(number(row[name])) + uncertain(row, name)

    under: dict[str, Callable[[Row], str | Cell]] = {
        line: other(f"{half}_{name}") for line, name in others.items()
    }
    if published:
        under[_PUBLISHED] = lambda row: blank(row.get(f"published_{column}"), printed)
    return Field(_HALVES[half], of, group, under=under)


def _reproduced(row: Row) -> list[str]:
    """Where a published ratio is ours over another reference than the stated one."""
    heads = {"max_ratio": "largest ratio", "post_norm_ratio": "terminal-norm ratio"}
    references = {"X_1": "$X_1$", "body": "the smallest"}
    notes = []
    for entry in row["reproduced_by"]:
        column, reading = entry.split(": ")
        part, _, name = column.partition("_")
        if reading in references:
            half = "re-initialised" if part == "random" else part
            notes.append(f"the published {heads[name]}, {half}, is ours over {references[reading]}")
    return notes


def _differs_at_fixed_rank(row: Row) -> bool:
    """Whether the corollary's ratio, of the same singular value at every block, is not the
    published one.
    """
    pairs = [
        (row[f"{part}_{end}_ratio"], row[f"{part}_fixed_rank_{end}_ratio"])
        for end in ("max", "min")
        for part in _HALVES
    ]
    return any(own != fixed for own, fixed in pairs)


def _notes(rows: Rows) -> list[str]:
    """What the columns are."""
    return [
        rf"$r_\ell={SIGMA}(X_\ell)/{SIGMA}(X_0)$: smallest active singular value of the centred "
        r"block outputs over that of the embedding. "
        "re-init.: the same architecture from fresh seeds, medians over them. Where values are "
        "published, over $X_1$: the same over "
        "the value of the first block's output, and over the smallest of all blocks. In post-norm "
        "models every block ends "
        "in a norm, so the ratios describe the norms and do not test depth invariance. "
        f"{UNCERTAINTY} {counts_note(rows)}"
    ]
