"""What is printed of several checkpoints: what differs, whether they are one, which is derived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normgauge.verbs.output import BLOCKS, LINES, number, table

if TYPE_CHECKING:
    from normgauge.anatomy.structure import Anatomy
    from normgauge.checkpoint_comparison.study import Comparison
    from normgauge.lineage.canonical import Canonical
    from normgauge.lineage.decision import Lineage
    from normgauge.lineage.localisation import Localisation
    from normgauge.lineage.same import Difference, Sameness


def compare_summary(anatomy: Anatomy, found: Comparison) -> list[str]:
    """The gauge, the size of the change against rounding, where it is largest, and the tests."""
    rows = [row for row in found.inventory if row["status"] == "tensor"]
    changed = [row for row in rows if row["difference"]]
    significant = [row for row in found.nulls if row["significant"]]
    tests = sum(row["confirmatory"] for row in found.nulls)
    lines = [
        f"{anatomy.architecture}: {len(changed)} of {len(rows)} tensors differ from A to B.",
        gauge_line(found.alignment),
        *equality_lines(found.decision),
        f"{len(significant)} of {tests} tests find more structure in it than in random changes of "
        "that size (5 % for all of them together)."
        + (
            f" The strongest: {component(min(significant, key=lambda row: row['p']))}."
            if significant
            else ""
        ),
        "",
    ]
    shares = aligned_shares(changed)
    header = ("changed most", "share", "of its size", "coordinates left", "rounding alone")
    largest = sorted(changed, key=lambda row: -shares[row["tensor"]])[:8]
    cells = [
        (
            row["tensor"],
            f"{shares[row['tensor']]:.1%}",
            *(number(row[name]) for name in ("aligned_relative", "relative", "floor")),
        )
        for row in largest
        if shares[row["tensor"]]
    ]
    return [
        *lines,
        *table(header, cells),
        "share: of the squared change; of its size: relative change, coordinates undone; "
        "coordinates left: the same as stored.",
    ]


def equality_lines(decision: Mapping[str, Any]) -> list[str]:
    """That A and B are equal up to rounding, where they are."""
    if decision["verdict"] == "changed":
        return []
    return ["In one gauge A and B are equal up to storage rounding: one function in two copies."]


def aligned_shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By tensor its share in the squared difference of all, with the gauge taken out where it was
    looked for.
    """

    def squared(row: Mapping[str, Any]) -> float:
        known = row["aligned_relative"] is not None and row["relative"]
        return (
            row["difference"] * (row["aligned_relative"] / row["relative"] if known else 1.0)
        ) ** 2

    energies = {row["tensor"]: squared(row) for row in rows}
    total = sum(energies.values())
    return {name: energy / total if total else 0.0 for name, energy in energies.items()}


def gauge_line(alignment: Sequence[Mapping[str, Any]]) -> str:
    """Which spaces of B were found in other coordinates than A's."""
    groups: dict[str, list[str]] = {}
    for row in alignment:
        groups.setdefault(row["group"], []).append(row["found"])
    said = []
    for group, kinds in groups.items():
        # balanced: a choice among equals, made on both sides
        moved = kinds.count("gauge") + kinds.count("rotation")
        none = kinds.count("none")
        if moved or none:
            said.append(
                f"{group}: {moved} of {len(kinds)} renumbered"
                + (f", {none} without a counterpart" if none else "")
            )
    return (
        f"B's coordinates against A's, undone before comparing: {'; '.join(said)}."
        if said
        else "B's coordinates are those of A: no change of coordinates was undone."
    )


def component(row: Mapping[str, Any]) -> str:
    """A tested component in words, with its adjusted p."""
    where = [f"block {row['block']}"] if row["block"] else []
    where += [str(row["part"])] if row["part"] else []
    where += [f"{name} {row[name]}" for name in ("head", "unit", "token") if row[name] is not None]
    return f"{' '.join(where)} ({row['statistic']}, q = {row['q']:.2g})"


def canonical_summary(anatomy: Anatomy, form: Canonical, folder: str | None) -> list[str]:
    """The hash, what it is blind to, and whether ties were decided."""
    lines = [
        f"{form.sha256}  {anatomy.architecture}",
        "Every copy of the model with coordinates, units or heads in another order or with other "
        "signs has this hash.",
    ]
    if not form.proven:
        lines.append(
            f"Not decided: {form.leaves} forms were compared and ties are left; another hash of a "
            "copy would say nothing."
        )
    if folder:
        lines += [
            f"{folder}: the model in this form; {folder}.gauge.parquet: the gauge to it.",
            "A bare encoder's outputs move with the stream: embeddings of the old form do not fit.",
        ]
    return lines


def same_summary(found: Sameness) -> list[str]:
    """The verdict, the hashes, and the first invariant that differs."""
    from normgauge.lineage.same import Verdict

    lines = [
        f"hash of {name}: {form.sha256}" for name, form in (("A", found.a), ("B", found.b)) if form
    ]
    if found.verdict == Verdict.SAME:
        return ["The same: A and B have one canonical form, byte by byte.", *lines]
    if found.verdict == Verdict.SETTINGS:
        return [
            f"The same weights under other settings: {', '.join(found.settings)}.",
            "The functions need not be the same.",
            *lines,
        ]
    if found.verdict == Verdict.ROUNDED and found.rounding:
        return [
            "The same up to rounding: a change of coordinates leads from A to B, and rounding each "
            "stored weight once explains what is left.",
            f"An error of {number(found.rounding.ulp, 2)} ulp in every stored value is needed (at "
            f"most 0.5), the most in {found.rounding.tensor}.",
            *lines,
        ]
    first = {
        Verdict.ANOTHER: "Not the same under permutations, signs and quarter turns.",
        Verdict.UNDECIDED: "Undecided: the forms differ, but ties in them are left.",
    }[found.verdict]
    shown = [_difference_line(each) for each in found.differences[:BLOCKS]]
    if len(found.differences) > BLOCKS:
        shown.append(f"  and {len(found.differences) - BLOCKS} more tensors")
    return [
        first,
        "The first invariant that differs:",
        *shown,
        *lines,
        *_rounding_lines(found),
        "`normgauge gauge check A B` compares the functions themselves; `normgauge lineage A B` "
        "tests whether one was made from the other.",
    ]


def _rounding_lines(found: Sameness) -> list[str]:
    """What was found beyond the discrete groups."""
    from normgauge.lineage.same import OUTSIDE

    if not found.rounding:
        return [f"Not compared, and possible with the same function: {'; '.join(OUTSIDE)}."]
    return [
        "Nor up to rounding: maps of heads, scales of units and absorbed gains leave differences "
        f"of {number(found.rounding.ulp, 2)} ulp of every stored value, the most in "
        f"{found.rounding.tensor}."
    ]


def _difference_line(found: Difference) -> str:
    if not found.tensor:
        return f"  {found.invariant}"
    if not found.total:
        return f"  {found.invariant}: {found.tensor}"
    return (
        f"  {found.invariant}: {found.tensor}, {found.count:,} of {found.total:,} have no partner"
    )


def lineage_summary(found: Sequence[tuple[str, str, Lineage]]) -> list[str]:
    """A row for each pair, and what the columns are."""
    rows = [
        [
            f"{a} {b}",
            number(each.exact_p, 2),
            f"{each.match.agreements} of {each.match.units}",
            f"{each.match.expected:.4g}",
            number(each.match.p, 2),
            str(each.verdict),
        ]
        for a, b, each in found[: LINES - BLOCKS]
    ]
    lines = table(["pair", "exact p", "units agree", "by chance", "p", "verdict"], rows)
    if len(found) > len(rows):
        lines.append(f"and {len(found) - len(rows)} more pairs: --json has all")
    for _, _, each in found[:1]:
        if each.initial:
            lines.append(
                f"Initial weights held: {each.initial.statistic} units agree, of fresh ones "
                f"{each.initial.largest_fresh} at most; p {each.initial.p:.2g}."
            )
    return [
        *lines,
        "exact p: of permutations of units and of stream coordinates; a renumbering hides descent "
        "from it.",
        "units agree: matched by what they read and by what they write, in any coordinates; not an "
        "exact test.",
        "Unseen: distillation, and weights changed beyond recognition. The direction is open.",
    ]


def origin_summary(a: str, b: str, where: Localisation) -> list[str]:
    """Layer by layer of B, where in A its units and heads come from."""
    lines = [f"Where {b} comes from in {a}:"]
    for kind, sources in (("units", where.units), ("heads", where.heads)):
        for each in sources[:LINES]:
            found = f"{len(getattr(each, kind))} of {each.total} {kind} from {each.source}"
            layer = each.layer.rstrip("/")
            lines.append(f"  {layer}: {found.rstrip('/') if each.source else f'{kind} unplaced'}")
        if len(sources) > LINES:
            lines.append(f"  and {len(sources) - LINES} more layers: --json has all")
    return lines
