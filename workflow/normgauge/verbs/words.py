"""Every sentence that a verb prints as its summary, so that they can be read together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normgauge.verbs.output import number, table

if TYPE_CHECKING:
    from normgauge.anatomy.structure import Anatomy
    from normgauge.calibration.direct import Inputs
    from normgauge.checkpoint_comparison.study import Comparison
    from normgauge.gauge.model_matching import ModelMatching
    from normgauge.lineage.canonical import Canonical
    from normgauge.lineage.decision import Lineage
    from normgauge.lineage.localisation import Localisation
    from normgauge.lineage.same import Difference, Sameness
    from normgauge.live.kernel import KernelCheck
    from normgauge.live.measuring import Measured

LINES = 20  # of a summary, at most
BLOCKS = 7  # of a table along the depth
TEXT = "the kernel holds for any; for text give --tokens kjv or FILE"


def model_line(anatomy: Anatomy, precision: str) -> str:
    depths = " and ".join(
        f"{len(stack.blocks)} {stack.name} blocks of width {stack.width}"
        for stack in anatomy.stacks
    )
    return (
        f"{anatomy.architecture}: {depths}, {anatomy.placement} {anatomy.norm_kind}; stored in "
        f"{precision} precision."
    )


def fingerprint_summary(found: Measured, check: KernelCheck) -> list[str]:
    """At most LINES lines on one model: what was measured, the kernel, the profile along the
    depth.
    """
    row = next(each for each in found.stacks if each["primary"])
    drawn = f"; {TEXT}" if "random" in found.inputs.words else ""
    lines = [
        model_line(found.anatomy, row["precision"]),
        f"Inputs: {found.inputs.words}{drawn}.",
        *kernel_lines(check, row),
        profile_line(row),
    ]
    return [
        *lines,
        "",
        *depth_table([each for each in found.fingerprint if each["stack"] == row["stack"]]),
    ]


def kernel_lines(check: KernelCheck, row: Mapping[str, Any]) -> list[str]:
    """The statement on LayerNorm's kernel, or why there is none for RMSNorm."""
    total = len(check.verdicts)
    if not total:
        return [_without_kernel(row)]
    holds, undecided = check.count("holds"), check.count("undecided")
    lines = [
        f"The kernel holds at {holds} of {total} LayerNorm outputs"
        + _how_exactly(check.largest)
        + "."
    ]
    if undecided:
        lines.append(
            f"At {undecided} rounding hides it: measure with more digits (--forward-dtype float64)."
        )
    if failing := [name for name, verdict in check.verdicts.items() if verdict == "fails"]:
        lines.append(
            f"It fails at {', '.join(failing[:3])}{', ...' if len(failing) > 3 else ''}: the "
            "output varies along 1/gamma."
        )
    return lines


def _how_exactly(largest: float | None) -> str:
    return (
        ""
        if largest is None
        else f": along 1/gamma they do not vary (at most {largest:.1g} of the largest singular "
        "value)"
    )


def _without_kernel(row: Mapping[str, Any]) -> str:
    cosine, chance = row["post_norm_cos_gamma_inv"], row["random_direction_null"]
    found = (
        ""
        if cosine is None
        else f" The direction of least variation has |cos| {cosine:.2g} with 1/gamma (chance: "
        f"{chance:.2g})."
    )
    return (
        "No LayerNorm output was measured; RMSNorm does not subtract the mean and so has no "
        f"kernel.{found}"
    )


def profile_line(row: Mapping[str, Any]) -> str:
    """The residual stream along the depth, at the embedding's active rank (arXiv 2606.19491,
    A.5).
    """
    kind, low, last = row["behaviour"], row["fixed_rank_min_ratio"], row["fixed_rank_output_ratio"]
    ends = (
        f": {kind}"
        if not kind.startswith("not applicable")
        else "; each block ends in a norm, so no class of profiles applies"
    )
    if low is None:
        return f"The residual stream at the embedding's rank, {row['fixed_rank']}{ends}."
    after = "" if last is None else f", {last:.3g} after the last block"
    return (
        f"Singular value of the residual stream at the embedding's rank, {row['fixed_rank']}, over "
        "the embedding's: "
        f"{low:.3g} at the least (block {row['fixed_rank_min_ratio_block']}){after}{ends}."
    )


def depth_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The stream's sites from the embedding to the last norm; of many blocks some, the first and
    last among them.

    The cosine is that of the direction with the smallest singular value, or of all below the floor
    where they are several.
    """
    shown = [row for row in rows if row["tap"] in ("embedding", "output", "terminal_norm")]
    blocks = [row for row in shown if row["tap"] == "output"]
    if len(blocks) > BLOCKS:
        step = (len(blocks) - 1) / (BLOCKS - 1)
        kept = {blocks[round(number_ * step)]["site"] for number_ in range(BLOCKS)}
        shown = [row for row in shown if row["tap"] != "output" or row["site"] in kept]
    header = ("site", "n", "d", "smallest sigma", "at rank", "dead or rounding", "|cos| 1/gamma")
    cells = [
        (
            row["site"],
            str(row["n"]),
            str(row["d"]),
            number(row["sigma_active_min"]),
            number(row["fixed_rank_ratio"]),
            str(row["null_dimension"]),
            number(
                row["cos_gamma_inv"] if row["null_dimension"] < 2 else row["null_cos_gamma_inv"], 4
            ),
        )
        for row in shown
    ]
    return [
        *table(header, cells),
        "smallest sigma: smallest singular value above rounding; at rank: sigma at the embedding's "
        "rank over the embedding's; dead or rounding: directions that do not rise above rounding.",
    ]


def written(folder: str | None) -> list[str]:
    return (
        [f"Written to {folder}."]
        if folder
        else ["Nothing was written; --out DIR writes the tables."]
    )


def directions_summary(anatomy: Anatomy, found: Mapping[str, Any], output: str) -> list[str]:
    """What was written of the norms' dead directions, or that there is none."""
    norms = len(anatomy.norms)
    if not found:
        return [
            f"{anatomy.architecture}: none of its {norms} norms has a dead direction, and nothing "
            "was written.",
            f"They are {anatomy.norm_kind}: without subtracting the mean, and without a gain of "
            "zero, every direction can vary.",
        ]
    vectors = sum(len(value) for value in found.values())
    lines = [
        f"{anatomy.architecture}: {len(found)} of {norms} norms have dead directions; {vectors} "
        f"unit vectors were written to {output}.",
        "Behind each norm the activations are constant along its vector, 1/gamma: an adapter that "
        "reads along it learns nothing.",
        "Tensors NORM/kernel, float64 (k, d), have them as rows V: project with x - (x V^T) V. "
        "NORM/constant is what the output has along them.",
    ]
    zeros = [name for name, value in found.items() if (value != 0).sum() == len(value)]
    return [
        *lines,
        *(
            [f"Gains of zero put coordinate axes in its place at {len(zeros)} norms."]
            if zeros
            else []
        ),
    ]


def align_summary(found: ModelMatching, inputs: Inputs, rounded: int, output: str) -> list[str]:
    """What of B was brought into A's coordinates, and what is not certain."""
    from normgauge.gauge.matching_report import doubts, parts

    head = (
        "All of B was matched with certainty."
        if found.certain
        else "Not all of B was matched with certainty: the likeliest match was taken where it is "
        "doubtful (status 1)."
    )
    lines = [f"{head} Matched on {inputs.words}.", *(f"  {line}" for line in parts(found))]
    said = doubts(found)
    room = LINES - len(lines) - 3
    lines += [f"  {line}" for line in said[:room]]
    if len(said) > room:
        lines.append(f"  and {len(said) - room} more doubtful spaces; --json lists all")
    exact = "nothing was rounded" if not rounded else f"{rounded} tensors were rounded, once each"
    return [*lines, f"B in A's coordinates is in {output}; {exact}."]


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


def audit_summary(anatomy: Anatomy, rows: Sequence[Mapping[str, Any]], inputs: str) -> list[str]:
    """Which names stay when coordinates change and the function does not."""
    first = rows[0]
    lines = [
        f"{anatomy.architecture}: a random gauge renamed its coordinates; outputs move by "
        f"{first['relative_deviation']:.2g} (float32).",
        f"Inputs: {inputs}. Each claim names {first['top']} coordinates before and after.",
        kept_names_line(rows),
        "",
    ]
    cells = [
        (
            row["claim"],
            row["site"],
            f"{row['raw_overlap']:.0%}",
            f"{row['chance']:.1%}",
            f"{row['mapped_overlap']:.0%}",
        )
        for row in rows
    ]
    return [
        *lines,
        *table(("claim", "site", "names that stay", "chance", "found again by the gauge"), cells),
    ]


def kept_names_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Whether any claim names the same numbers more often than three standard deviations above
    chance.
    """
    kept = [
        row["claim"]
        for row in rows
        if row["raw_overlap"] > row["chance"] + 3 * chance_deviation(row)
    ]
    if kept:
        return f"More names than by chance stay for: {', '.join(kept)}."
    return (
        "No claim keeps more names than by chance: they belong to the basis of this copy, not "
        "to the function."
    )


def chance_deviation(row: Mapping[str, Any]) -> float:
    """Standard deviation of the share of `top` names that stay when `width` coordinates are
    permuted (hypergeometric).
    """
    top, width, chance = row["top"], row["width"], row["chance"]
    return (chance * (1 - chance) * (width - top) / (top * (width - 1))) ** 0.5


def carry_summary(kind: str, output: str, doubts: Sequence[str], way: str) -> list[str]:
    """What was carried where, and what of the gauge is doubtful."""
    lines = [
        f"Carried: {kind}, {way}. Written to {output}, with a record of the model that it now fits."
    ]
    if doubts:
        room = LINES - 4
        lines += [
            "Not all of the gauge is certain (status 1):",
            *(f"  {line}" for line in doubts[:room]),
        ]
        lines += (
            [f"  and {len(doubts) - room} more; --json lists all"] if len(doubts) > room else []
        )
    return lines


def share_of(part: int, whole: int) -> str:
    """A share in percent, rounded down: 100 % means all."""
    return f"{part * 10000 // whole / 100:.2f}%"


def recover_summary(
    architecture: str, rows: Sequence[Mapping[str, Any]], observed: int
) -> list[str]:
    """How many stored values the activations gave away, and that none of the claims is wrong."""
    values, right = sum(row["values"] for row in rows), sum(row["recovered"] for row in rows)
    misses, flagged = sum(row["misses"] for row in rows), sum(row["flagged"] for row in rows)
    whole = sum(row["recovered"] == row["values"] for row in rows)
    share = f"{right:,} of {values:,} stored values ({share_of(right, values)})"
    lines = [
        f"{architecture}: {share} were recovered bit for bit from {observed} positions.",
        f"{whole} of {len(rows)} tensors are complete; {misses} claimed values are wrong, "
        f"{flagged} were solved and not claimed.",
        "",
    ]
    incomplete = sorted(
        (row for row in rows if row["recovered"] < row["values"]),
        key=lambda row: row["recovered"] - row["values"],
    )
    complete = [row for row in rows if row["recovered"] == row["values"]]
    shown = [*incomplete[:5], *complete[: 10 - len(incomplete[:5])]]
    cells = [
        (
            row["tensor"],
            f"{row['values']:,}",
            share_of(row["recovered"], row["values"]),
            number(row["min_margin"]),
        )
        for row in shown
    ]
    lines += table(("tensor", "values", "recovered", "smallest margin"), cells)
    if others := len(rows) - len(shown):
        lines.append(f"and {others} more; --json lists all")
    reasons: dict[str, list[str]] = {}
    for row in incomplete[:5]:
        reasons.setdefault(row["reason"] or "no reason was found", []).append(row["tensor"])
    return [*lines, *(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())]


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
