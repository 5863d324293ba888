"""What is printed of one model: its fingerprint, its dead directions, its recovered weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normgauge.verbs.output import BLOCKS, number, table

if TYPE_CHECKING:
    from normgauge.anatomy.structure import Anatomy
    from normgauge.live.kernel import KernelCheck
    from normgauge.live.measuring import Measured

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
