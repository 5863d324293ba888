"""Every statistic of the comparison, declared once: what it is, whether a swap of A and B turns its
sign, and which gauges leave it alone.

A statistic is `odd` when it is a difference B - A: a swap turns its sign. It is even when it
measures the size or shape of a change.

`invariant_under` names the groups under which it stays the same when B alone is gauged, without any
alignment: residual   signed permutations of the stream that the norms allow folds      scales moved
from a norm's gain into the maps that it feeds units      permutations of feed-forward units scales
scales of a unit that its linear branch passes on to the down projection heads      heads and
key/value groups change places values     an invertible matrix on the values of each group queries
what the positions and the query/key norms leave of an invertible matrix on queries and keys Folded
statistics (mode `folded`) are invariant under folds as well, raw ones are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from normgauge.checkpoint_comparison.factors import Mode

GROUPS = ("residual", "folds", "units", "scales", "heads", "values", "queries")

UNITS = frozenset({"units", "scales"})

ATTENTION = frozenset({"heads", "values", "queries"})

OV = UNITS | {"values", "queries"}
"""Of one head's value and output maps: units and the other maps do not touch it, its own values'
basis cancels.
"""

QK = UNITS | {"values", "queries"}

MLP = ATTENTION | UNITS

WRITTEN = frozenset({"folds", "queries"})
"""Of what a layer writes: no norm feeds it."""

PROBED = frozenset({"residual"})
"""Contracted with both sides' own embeddings over every axis of the stream."""


@dataclass(frozen=True)
class Statistic:
    """`groups`: invariant under these in either mode. `odd`: see above. `analyses`: numbers in
    docs/checkpoint_comparison.md.
    """

    family: str
    odd: bool
    groups: frozenset[str]
    analyses: str
    meaning: str

    def invariant_under(self, mode: Mode) -> list[str]:
        groups = self.groups | ({"folds"} if mode == Mode.FOLDED else set())
        return [group for group in GROUPS if group in groups]


def _ov(odd: bool, groups: frozenset[str], analyses: str, meaning: str) -> Statistic:
    return Statistic("OV", odd, groups, analyses, meaning)


def _qk(odd: bool, groups: frozenset[str], analyses: str, meaning: str) -> Statistic:
    return Statistic("QK", odd, groups, analyses, meaning)


def _spectra(odd: bool, groups: frozenset[str], analyses: str, meaning: str) -> Statistic:
    return Statistic("spectra", odd, groups, analyses, meaning)


def _mlp(odd: bool, groups: frozenset[str], analyses: str, meaning: str) -> Statistic:
    return Statistic("MLP", odd, groups, analyses, meaning)


STATISTICS: Mapping[str, Statistic] = {
    # --- OV
    "ov_copy": _ov(
        True,
        OV | PROBED,
        "3, 16, 17",
        "tr(Z O V Z^T) / sum(Z^2): how much a head writes the token that it reads",
    ),
    "ov_copy_output_part": _ov(
        True,
        (OV | PROBED) - {"values"},
        "3, 12",
        "part of the change of ov_copy that the output map made",
    ),
    "ov_copy_value_part": _ov(
        True,
        (OV | PROBED) - {"values"},
        "3, 12",
        "part of the change of ov_copy that the value map made",
    ),
    "ov_copy_token": _ov(True, OV | PROBED, "17", "one token's share of ov_copy; they sum to it"),
    "ov_copy_without": _ov(True, OV | PROBED, "17", "ov_copy with one token left out"),
    "ov_copy_all_heads": _ov(
        True, OV | PROBED | {"heads"}, "3", "sum of ov_copy over the block's heads"
    ),
    "ov_contrast": _ov(
        True,
        OV | PROBED,
        "25",
        "ov_copy along an orthogonal contrast of an ordered set; they sum to it",
    ),
    "ov_affine_margin": _ov(
        True, OV | PROBED, "27", "identity minus the best other map a i + b mod k"
    ),
    "ov_affine_rank": _ov(
        True, OV | PROBED, "27", "rank of the identity among the maps a i + b mod k, 1 for the best"
    ),
    "ov_symmetric_positive": _ov(
        True,
        OV | PROBED,
        "28",
        "positive eigenvalues of the symmetric part of the kernel between even frames",
    ),
    "ov_symmetric_trace": _ov(True, OV | PROBED, "28", "trace of that part, over the dimension"),
    "ov_probe_energy": _ov(False, OV | PROBED, "15, 16", "squared norm of the change of Z O V Z^T"),
    "ov_energy": _ov(False, OV, "15", "squared norm of the change of O V"),
    "ov_relative": _ov(
        False, OV, "15", "norm of the change of O V over that of the mean of the two kernels"
    ),
    "ov_top_share": _ov(False, OV, "2, 18", "share of the largest singular value in ov_energy"),
    "ov_effective_rank": _ov(False, OV, "4", "effective rank of the change of O V"),
    "ov_probe_write_share": _ov(
        False, OV, "15, 16", "share of ov_energy that is written into the probe subspace"
    ),
    "ov_probe_enrichment": _ov(
        False, OV, "15", "that share over the subspace's share of the dimensions"
    ),
    "ov_common_share": _ov(
        False,
        OV | PROBED,
        "24",
        "share of the head-common mode in the changes of a block's probe kernels",
    ),
    "ov_copy_z": _ov(
        True,
        OV | PROBED,
        "3, 15",
        "change of the trace between even frames over its deviation under relabelled tokens, exact",
    ),
    "ov_cross_form": _ov(
        True, OV | PROBED, "17", "ov_copy from the tokens of one set to those of its other form"
    ),
    "ov_factorial": _ov(
        True,
        OV | PROBED | {"heads"},
        "7",
        "ov_copy_all_heads with one of the eight choices of gains, as mlp_factorial",
    ),
    "ov_affine_even_margin": _ov(
        True, OV | PROBED, "27", "ov_affine_margin between even frames, over their dimension"
    ),
    "ov_head_cosine": _ov(
        False,
        OV | PROBED,
        "24",
        "cosine of two heads' changes of their probe kernels; the largest of a block",
    ),
    "ov_output_energy_share": _ov(
        False,
        OV - {"values"},
        "15",
        "energy of the part of the change of O V that the output map made, over both parts'",
    ),
    # --- QK
    "qk_contrast": _qk(
        True,
        QK | PROBED,
        "6, 9-11, 22",
        "q^T Q^T R K c at an offset: q the asking set's mean, c the probes' minus their control's",
    ),
    "qk_contrast_controlled": _qk(
        True, QK | PROBED, "11, 22", "the same with q that mean minus its control's"
    ),
    "qk_contrast_radial_free": _qk(
        True, QK, "11", "qk_contrast without the part of the change along the mean kernel"
    ),
    "qk_contrast_query_part": _qk(
        True,
        (QK | PROBED) - {"queries"},
        "12",
        "part of the change of qk_contrast that the query map made",
    ),
    "qk_contrast_key_part": _qk(
        True,
        (QK | PROBED) - {"queries"},
        "12",
        "part of the change of qk_contrast that the key map made",
    ),
    "qk_contrast_cosine": _qk(True, QK, "6", "cosine of the change of q^T Q^T K with c"),
    "qk_radial": _qk(True, QK, "11", "<change, mean> / |mean|^2 of the kernel"),
    "qk_cross_energy": _qk(
        False,
        QK | PROBED,
        "9, 10",
        "squared norm of the change of the kernel between two sets' frames",
    ),
    "qk_energy": _qk(False, QK, "9", "squared norm of the change of Q^T K"),
    "qk_relative": _qk(
        False, QK, "9", "norm of the change of Q^T K over that of the mean of the two kernels"
    ),
    "qk_truncated": _qk(
        False,
        QK - {"queries"},
        "18",
        "share of qk_contrast that remains with the changes of Q and K cut to a rank",
    ),
    "qk_composition": _qk(True, QK | PROBED, "13, 22", "q^T Q^T K O V c through an earlier head"),
    "qk_composition_query": _qk(
        True, QK | PROBED, "22", "the same with what the head moves as the query: (O V c)^T Q^T K q"
    ),
    "qk_composition_all": _qk(
        True, QK | PROBED, "13, 22", "q^T Q^T K of what all earlier heads together make of c"
    ),
    "qk_composition_reader_part": _qk(
        True, QK, "13, 22", "part of the change of qk_composition_all that the reading head made"
    ),
    "qk_composition_writer_part": _qk(
        True, QK, "13, 22", "part of the change of qk_composition_all that the earlier heads made"
    ),
    "qk_token_top_share": _qk(
        False,
        QK | PROBED,
        "10",
        "share of the largest singular value in the change of Z Q^T R K Z^T at an offset",
    ),
    "qk_token_pair": _qk(
        True, QK | PROBED, "10", "z_i Q^T R K z_j of the pairs of tokens that changed most"
    ),
    # --- MLP
    "mlp_up_path": _mlp(True, MLP | PROBED, "5", "sum over units of (Z d) . (Z u) / sum(Z^2)"),
    "mlp_gate_path": _mlp(True, (MLP | PROBED) - {"scales"}, "5", "the same through the gate"),
    "mlp_up_path_down_part": _mlp(
        True,
        (MLP | PROBED) - UNITS,
        "5, 12",
        "part of the change of mlp_up_path that the down map made",
    ),
    "mlp_up_path_up_part": _mlp(
        True,
        (MLP | PROBED) - UNITS,
        "5, 12",
        "part of the change of mlp_up_path that the up map made",
    ),
    "mlp_up_path_unit": _mlp(
        True,
        (MLP | PROBED) - {"units"},
        "5",
        "one unit's change of its share of mlp_up_path; the largest ones",
    ),
    "mlp_factorial": _mlp(
        True,
        MLP | PROBED,
        "7",
        "mlp_up_path with one of the eight choices of the gains before, behind and at the readout",
    ),
    "mlp_trace": _mlp(True, MLP | PROBED, "8", "sum over units of (Z d) <g, u>, by token"),
    "mlp_unit_energy": _mlp(
        False,
        MLP - {"units"},
        "8",
        "squared norm of the change of one unit's d (x) sym(g (x) u); the largest ones",
    ),
    "mlp_unit_concentration": _mlp(
        False, MLP - {"units"}, "8", "share of the ten largest of them in their sum"
    ),
    "mlp_rescaling_share": _mlp(
        False,
        MLP - UNITS,
        "23",
        "share of the change of (u, d) that reciprocal scales of up and down explain",
    ),
    "mlp_direction_share": _mlp(
        False,
        (MLP - UNITS) | {"folds"},
        "23",
        "share of the change of down that is no change of its columns' lengths",
    ),
    "mlp_motifs": _mlp(
        True, MLP | PROBED, "20", "number of units that read and write one token, by mlp_motif_unit"
    ),
    "mlp_motif_unit": _mlp(
        True,
        (MLP | PROBED) - {"units"},
        "20",
        "smallest cosine of a unit's rows with one token; the largest ones",
    ),
    "mlp_motif_write": _mlp(
        True,
        (MLP | PROBED) - {"units"},
        "20",
        "cosine of what that unit writes with the token, times the sign of what it reads of it",
    ),
    "mlp_gate_contrast": _mlp(
        True,
        MLP | PROBED,
        "29",
        "mean cosine of gates with a contrast, of the units that add to mlp_up_path or take from "
        "it",
    ),
    "mlp_reader": _mlp(
        True,
        MLP | PROBED,
        "21",
        "share of a contrast moved by all earlier heads that units read, weighted by what they "
        "write of the set",
    ),
    "mlp_reader_unit": _mlp(
        True,
        (MLP | PROBED) - {"units", "heads"},
        "21",
        "part of that share of one unit and one earlier head; the largest changes",
    ),
    # --- trilinear
    "trilinear_energy": Statistic(
        "trilinear",
        False,
        MLP,
        "14, 19",
        "squared norm of the change of sum over units of d (x) sym(reads)",
    ),
    "trilinear_relative": Statistic(
        "trilinear", False, MLP, "14", "norm of that change over that of the mean of the two sums"
    ),
    "trilinear_unit_ratio": Statistic(
        "trilinear",
        False,
        MLP - {"units"},
        "8, 14",
        "trilinear_energy over the sum of mlp_unit_energy",
    ),
    "trilinear_probe_energy": Statistic(
        "trilinear", False, MLP, "14", "the same with d projected on the probes"
    ),
    "trilinear_share": Statistic(
        "trilinear",
        False,
        MLP - UNITS,
        "14, 19",
        "share of a term of the exact split; they sum to 1",
    ),
    # --- spectra
    "write_top_share": _spectra(
        False,
        WRITTEN,
        "2",
        "share of the largest 1, 4, 16 eigenvalues in the change of what a layer writes",
    ),
    "write_effective_rank": _spectra(False, WRITTEN, "4", "effective rank of that change"),
    "write_probe_share": _spectra(
        False, frozenset({"queries"}), "4, 15", "its share in the probe subspace"
    ),
    "write_axis_token": _spectra(
        False, WRITTEN, "2", "|cosine| of a token with the leading axis of that change"
    ),
    "read_effective_rank": _spectra(
        False, frozenset({"values"}), "4", "effective rank of the change of what a layer reads"
    ),
    "read_probe_share": _spectra(
        False, frozenset({"values"}), "4, 15", "its share in the probe subspace"
    ),
    "pooled_write_share": _spectra(
        False, WRITTEN, "2", "write_top_share pooled over blocks, each with trace one"
    ),
    "gram_gain": _spectra(
        True,
        PROBED | {"units", "heads", "values"},
        "23",
        "mean log of the gains from A to B over the probe subspace",
    ),
    "gram_gain_largest": _spectra(
        False,
        PROBED | {"units", "heads", "values"},
        "23",
        "largest size of the log of a gain from A to B over the probe subspace",
    ),
    "gram_gain_range": _spectra(
        False,
        PROBED | {"units", "heads", "values"},
        "23",
        "half of the range of the logs of those gains",
    ),
    "write_axis_end": _spectra(
        False, WRITTEN, "2", "cosine of the tokens at both ends of that axis, the far end positive"
    ),
    "norm_gain_least": _spectra(
        True, PROBED | UNITS | ATTENTION, "1", "smallest effective gain of a norm, by size"
    ),
    "norm_gain_most": _spectra(
        True, PROBED | UNITS | ATTENTION, "1", "largest effective gain of a norm, by size"
    ),
    # --- recency
    "recency_curve": Statistic(
        "recency", True, QK | PROBED, "26", "tr(Z Q^T R K Z^T) / sum(Z^2) at an offset"
    ),
    "recency_window": Statistic(
        "recency", True, QK | PROBED, "26", "its mean over near offsets minus that over far ones"
    ),
    "recency_specific": Statistic(
        "recency", True, QK | PROBED, "26", "recency_window minus that of the control set"
    ),
    "recency_band": Statistic(
        "recency",
        False,
        QK | PROBED,
        "26",
        "share of a band of periods in the change of its Fourier series; they sum to 1",
    ),
    "recency_transport": Statistic(
        "recency",
        False,
        QK | PROBED,
        "28",
        "cosine of the traceless symmetric changes of recency, in each window, and of O V",
    ),
    "recency_support": Statistic(
        "recency",
        True,
        QK | PROBED,
        "28",
        "how much O V carries the directions that became more recent in B, minus those in A",
    ),
}

_BLANK: dict[str, Any] = {
    "block": None,
    "part": None,
    "head": None,
    "unit": None,
    "probe": None,
    "label": None,
    "a": None,
    "b": None,
}


def two_sided(statistic: str, mode: Mode, a: float, b: float, **place: Any) -> dict[str, Any]:
    """A row of an odd statistic that both sides have: its change is b - a."""
    return row(statistic, mode, b - a, a=float(a), b=float(b), **place)


def row(statistic: str, mode: Mode, change: float, **place: Any) -> dict[str, Any]:
    """A row of schema `checkpoint_comparison_kernels`; `place` may give block, part, head, unit,
    probe, label, a, b.
    """
    declared = STATISTICS[statistic]
    return {
        "family": declared.family,
        "statistic": statistic,
        "mode": str(mode),
        **_BLANK,
        **place,
        "change": float(change),
        "odd": declared.odd,
        "invariant_under": declared.invariant_under(mode),
    }


def catalogue() -> list[str]:
    """The statistics as lines of a Markdown table: name, meaning, analyses, parity, groups under
    which it is invariant.
    """
    lines = [
        "| statistic | what it is | analyses | swap | `invariant_under` |",
        "|---|---|---|---|---|",
    ]
    for name, each in STATISTICS.items():
        groups = ", ".join(group for group in GROUPS if group in each.groups) or "none"
        meaning = each.meaning.replace("|", "\\|")
        lines.append(
            f"| `{name}` | {meaning} | {each.analyses} | {'odd' if each.odd else 'even'} | "
            f"{groups} |"
        )
    return lines


if __name__ == "__main__":
    print("\n".join(catalogue()))
