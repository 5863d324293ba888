"""Rules by which tensors and artifacts move, and greedy assignment, as typeset tables."""

from __future__ import annotations

from statistics import mean

from matplotlib.figure import Figure

from normgauge.render.declared import Field, counted, share, table, value, words
from normgauge.render.formats import number
from normgauge.render.rows import Row, Rows, grouped
from normgauge.render.text import plain
from normgauge.schemas.discrete_laws import ARTIFACTS, WEIGHTS

_RULES = (
    words("tensor X", "tensor", flexible=True),
    words("its axes", "axis"),
    words("moves to", lambda row: _set(row["rule"])),
    value("error without signs\nover |X|²", "without_signs"),
)


def weight_rules(rows: Rows) -> Figure:
    """Table 9: tensors of a model. `rows` are of the schema transport_rules."""
    notes = [
        "Read off what the code does with a tensor: G of the residual stream, F of the "
        "units of the first block, |G| and |F| their permutations. For RMSNorm every other sign "
        "is negative, for LayerNorm all are, since its sign is common. Error: squared, of the "
        "tensor moved by the permutations alone.",
    ]
    return table("Table 9. How weights move", _RULES, _owned(rows, WEIGHTS), notes)


def artifact_rules(rows: Rows) -> Figure:
    """Table 1: artifacts on a stream. `rows` are of the schema transport_rules."""
    notes = [
        "What people carry, on a stream with RMSNorm, read off what the code does with a tensor: G "
        "of the stream, |G| its permutation. Half of the signs are negative: what has a direction "
        "errs by 2 without them; squares and features do not move by signs.",
    ]
    return table("Table 1. How artifacts move", _RULES, _owned(rows, ARTIFACTS), notes)


def _owned(rows: Rows, about: str) -> dict[str, list[Row]]:
    own = [row for row in rows if row["about"] == about]
    return {plain(each[0]["owner"]): list(each) for each in grouped(own, "owner")}


def _set(rule: str) -> str:
    """A rule in mathematics."""
    said = rule.replace("^T", r"^{\mathrm{T}}").replace(" ", r"\,")
    return rule if rule == "stays" else f"${said}$"


_GREEDY = (
    words("score", "score"),
    counted("d", "width"),
    counted("samples", "samples"),
    Field("noise", lambda row: number(row["noise"], 1)),
    counted("seeds", "seeds"),
    share("exact", "exact_permutation", "places found", 2),
    share("greedy", "greedy_permutation", "places found", 2),
    share("exact", "exact_sign", "signs found", 2),
    share("greedy", "greedy_sign", "signs found", 2),
    share("among\nits 200", "candidates", places=2),
    share("sum\nlost", "greedy_loses", places=2),
)


def greedy(rows: Rows) -> Figure:
    """Exact and greedy assignment, means over seeds. `rows` are of the schema greedy_assignment."""
    sections = {
        plain(name[0]["activations"]): [_pooled(each) for each in grouped(name, "score", "noise")]
        for name in grouped(rows, "activations")
    }
    notes = [
        "A model and its copy under a recorded gauge, with noise on the copy in units of each "
        "coordinate's standard deviation; means over the seeds of gauge, samples and noise. "
        "greedy: pairs are taken best first among each row's 200 best. among its 200: rows "
        "whose true place is one of these. Units: those of the first blocks side by side. "
        "Published for the greedy match at d = 4,096: 94.7% of the places and 97.5% of the "
        "signs, 100% by the exact one.",
    ]
    return table("Table 15. Greedy assignment where it is hard", _GREEDY, sections, notes)


def _pooled(rows: Rows) -> Row:
    shares = ("exact_permutation", "greedy_permutation", "exact_sign", "greedy_sign")
    same = {key: rows[0][key] for key in ("score", "width", "samples", "noise")}
    pooled = {
        key: mean(row[key] for row in rows) for key in (*shares, "candidates", "greedy_loses")
    }
    return {**same, "seeds": len(rows), **pooled}
