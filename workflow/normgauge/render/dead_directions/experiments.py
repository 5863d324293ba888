"""The tables and figures of the experiments around the fingerprint. A new one is a function and a
line here.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render.dead_directions import experiment_plots
from normgauge.render.declared import Drawing, Field, counted, share, table, value, words
from normgauge.render.formats import NOTHING, count, near_one, number
from normgauge.render.rows import Row, Rows, grouped, unique
from normgauge.render.text import plain

_ERROR = "±: one standard error over sequences (jackknife)."


def _with_error(head: str, key: str, group: str = "", digits: int = 3) -> Field:
    """A value and, behind it, its standard error where there is one."""

    def of(row: Row) -> str:
        error = row[f"{key}_se"]
        said = number(row[key], digits)
        return said if error is None or row[key] is None else f"{said} ± {number(error, 1)}"

    return Field(head, of, group, "left")


def _at(head: str, key: str, block: str, group: str = "") -> Field:
    """A value, its error, and the block that has it."""
    inner = _with_error(head, key, group)

    def of(row: Row) -> str:
        said = str(inner.of(row))
        return said if row[block] is None else f"{said} @{row[block]}"

    return Field(head, of, group, "left")


def _model(row: Row) -> str:
    several = row["stack"] != "decoder"
    return plain(f"{row['model']}, {row['stack']}" if several else row["model"])


def _placements(rows: Rows) -> dict[str, Rows]:
    return {
        name: [row for row in rows if row["placement"] == name]
        for name in unique(row["placement"] for row in rows)
    }


def _correlation(head: str, key: str, group: str) -> Field:
    def of(row: Row) -> str:
        if row[key] is None:
            return NOTHING
        return f"{row[key]:+.2f} (p {number(row[f'{key}_p'], 2)})".replace("-", "−")

    return Field(head, of, group, "left")


def table3(rows: Rows) -> Figure:
    """Gain concentration and principal angles of each sublayer. `rows` are of the schema table3."""
    fields = (
        words("model", _model, flexible=True),
        words("sublayer", lambda row: row["sublayer"].replace("_", "-")),
        counted("$L$", "blocks"),
        _at("min ratio", "min_ratio", "min_ratio_block"),
        value("largest", "gain_concentration_largest", "gains", 3),
        _correlation(r"$\rho_\gamma$", "rho_gain", "gains"),
        _at(r"max $\overline{\cos}$", "max_mean_cosine", "max_mean_cosine_block", "angles"),
        value("95%", "chance_cosine_high", "angles"),
        _correlation(r"$\rho_{\overline{\cos}}$", "rho_cosine", "angles"),
        _at_correlation(),
    )
    directions = " or ".join(sorted({str(row["directions"]) for row in rows if row["directions"]}))
    notes = [
        f"angles: principal cosines of the {directions} bottom directions of a block's input with "
        "the same number of top directions of what the sublayer adds; 95%: of random subspaces. "
        r"$\rho$: Spearman correlation over blocks with the log ratio to the embedding, p over "
        "permutations of the blocks (few blocks cannot give a small one). gains: "
        r"$\max|\gamma|/\overline{|\gamma|}$ of the norm after the sublayer, else of "
        "that before it.",
        "least corr.: smallest correlation of what is added with the stream, along the stream's "
        "bottom direction; the variance there falls only where it is below "
        r"$-\frac{1}{2}(\mathrm{Var}\,\delta/\mathrm{Var}\,x)^{1/2}$. " + _ERROR,
    ]
    return table(
        "Table 3. Why the smallest singular value rises or falls", fields, _placements(rows), notes
    )


def _at_correlation() -> Field:
    def of(row: Row) -> str:
        if row["least_correlation"] is None:
            return NOTHING
        found = f"{row['least_correlation']:+.2f}".replace("-", "−")
        return f"{found} @{row['least_correlation_block']}"

    return Field("least corr.", of, "", "left")


def table4(rows: Rows) -> Figure:
    """Norm placement and the locus of falls. `rows` are of the schema table4."""

    def of_blocks(head: str, key: str) -> Field:
        return Field(
            head,
            lambda row: NOTHING if row[key] is None else f"{row[key]}/{row['blocks']}",
        )

    fields = (
        words("model", _model, flexible=True),
        words("weights", lambda row: _weights(row)),
        counted("$L$", "blocks"),
        _with_error("min ratio", "min_ratio"),
        of_blocks("blocks $<X_0$", "blocks_below_one"),
        _with_error("output", "output_ratio"),
        of_blocks("attention", "attention_locus"),
        of_blocks("MLP", "mlp_locus"),
        words("verdict", "verdict"),
    )
    notes = [
        "attention, MLP: blocks whose sublayer lowers the smallest singular value (fixed rank). "
        "At random initialisation many of these changes are smaller than their error. " + _ERROR
    ]
    return table(
        "Table 4. Norm placement, and the sublayer that lowers the smallest singular value",
        fields,
        _placements(rows),
        notes,
    )


def _weights(row: Row) -> str:
    return "trained" if row["kind"] == "trained" else f"random, {row['revision']}"


def table5(rows: Rows) -> Figure:
    """Bottom directions of one input on others. `rows` are of the schema table5."""
    fields = (
        words("bottom of", "calibration"),
        words("measured on", "measured_on"),
        counted("block", "worst_block"),
        _with_error(r"$u^\mathrm{T}C_Bu/\lambda_{\min}(C_B)$", "excess", "", 3),
        value("most", "excess_largest", "", 3),
        _with_error("lift", "lift", "", 3),
        value(r"$|\cos|$", "cosine", "", 2),
        value("min ratio", "ratio", "", 3),
        value("on B", "ratio_measured_on", "", 3),
        words("behaviour", "behaviour", flexible=True),
    )
    sections = {
        f"{_model(members[0])}, {members[0]['kind']}": members
        for members in grouped(rows, "model", "stack", "kind", "seed")
    }
    notes = [
        "$u$: bottom active direction at the block with the smallest ratio under A (bottom of); "
        "most: over all blocks. lift: deviation along $u$ under B over that under A. "
        r"$|\cos|$: of the bottom directions under A and B. Errors over the sequences of A and of "
        "B, in quadrature."
    ]
    return table("Table 5. A bottom direction is that of an input", fields, sections, notes)


def table6(rows: Rows) -> Figure:
    """Where observables apply, and what each training conserves. `rows` are of the schema
    table6.
    """
    conditions = unique((row["optimiser"], row["loss"]) for row in rows)
    by = {(row["observable"], row["optimiser"], row["loss"]): row for row in rows}
    observables = unique(row["observable"] for row in rows)

    def verdict(condition: tuple[str, str]) -> Field:
        return words(
            f"{condition[0]}, {condition[1]}",
            lambda row: by[row["observable"], *condition]["published"],
        )

    lines: list[Row] = [{"observable": observable} for observable in observables]
    measured = [
        f"{optimiser}, {loss}: {number(by[observables[0], optimiser, loss]['shift_share'], 2)}"
        for optimiser, loss in conditions
    ]
    ranks = by[observables[0], "SGD", "cross-entropy"]
    notes = [
        "Published verdicts. Measured on one softmax layer of 7 classes, "
        f"{ranks['steps']} steps: share of the weights' movement along shifts common to all "
        f"classes: {'; '.join(measured)} (rounding: {number(ranks['floor'], 1)}). Smallest "
        "eigenvalue of the Fisher matrix of the outputs under cross-entropy over the largest: "
        f"{number(ranks['fisher_smallest'], 1)}, the next {number(ranks['fisher_next'], 2)}."
    ]
    fields = (words("observable", "observable", flexible=True), *map(verdict, conditions))
    return table("Table 6. Which observable means something where", fields, {"": lines}, notes)


def argmin_gamma(rows: Rows) -> Figure:
    """Bottom directions and smallest gains. `rows` are of the schema argmin_gamma."""
    fields = (
        words("model", _model, flexible=True),
        words("forward", "forward_dtype"),
        counted("$d$", "d"),
        counted("cells", "cells"),
        counted("undet.", "undetermined"),
        _with_error("mean", "mean_cosine"),
        value("chance", "chance_cosine", "", 2),
        value("95%", "chance_cosine_high", "", 2),
        value("median", "median_cosine"),
        value("largest", "largest_cosine"),
        words("at", lambda row: plain(row["largest_site"] or NOTHING), flexible=True),
        counted("collapsed", "collapsed_gains"),
    )
    sections = {
        kind: [row for row in rows if row["norm_kind"] == kind]
        for kind in unique(row["norm_kind"] for row in rows)
    }
    notes = [
        r"$|\cos(u_\mathrm{bot},e_{\arg\min\gamma})|$ over the sites of the stream whose bottom "
        r"direction is determined. chance: mean of a random direction, $(2/\pi d)^{1/2}$; 95%: of "
        "the mean over as many independent cells. collapsed: gains below a tenth of the mean. "
        + _ERROR
    ]
    return table("Bottom directions and the smallest gain", fields, sections, notes)


def precision(rows: Rows) -> Figure:
    """What each arithmetic hides. `rows` are of the schema precision."""
    fields = (
        words("forward", "forward_dtype"),
        words("accumulation", "accumulation"),
        value(r"floor of $X_0$", "embedding_floor", "", 2),
        value(r"$\sigma_{\min}(X_0)$", "embedding_sigma", "", 3),
        counted("hidden", "directions_hidden"),
        counted("at sites", "sites_hiding"),
        value("error", "largest_error", "", 2),
        value("min ratio", "min_ratio", "", 3),
        value("smallest active", "published_min_ratio", "", 3),
        Field(r"$|\cos|$", lambda row: near_one(row["kernel_cosine"], 4)),
        counted("null", "kernel_null_dimension"),
        words("norm kind read", "norm_kind_activations", flexible=True),
    )
    sections = {
        f"{_model(members[0])}, {members[0]['norm_kind']}": members
        for members in grouped(rows, "model", "revision", "stack")
    }
    notes = [
        "hidden: directions that float64 with triangular factors resolves and this does not, over "
        "all sites of the stream. error: largest relative error of a site's smallest singular "
        "value against that reference. min ratio: at fixed rank, a dash where it lies below the "
        "floor; smallest active: of each site's own smallest value above the floor, as published, "
        r"which then compares different directions. $|\cos|$, null: after the last norm."
    ]
    return table("What each arithmetic hides", fields, sections, notes)


def norm_zoo(rows: Rows) -> Figure:
    """Kernels of norms, predicted and measured. `rows` are of the schema norm_zoo."""
    fields = (
        words("norm", "norm", flexible=True),
        words("one sample", "sample", flexible=True),
        words("mean subtracted over", "mean_over", flexible=True),
        counted("predicted", "predicted_dimension", "kernel dimension"),
        counted("measured", "null_dimension", "kernel dimension"),
        Field("contained", lambda row: near_one(row["containment"], 4)),
        Field("without gains", lambda row: near_one(row["other_containment"], 4)),
        value("least active", "smallest_active_share", "", 2),
    )
    notes = [
        f"{count(rows[0]['n'])} samples of correlated channels in float64, triangular factors. "
        "contained: smallest principal cosine of the predicted directions with the null space; "
        "without gains: the same of directions that ignore the gains, the control (it has no power "
        "where each direction lies in one channel)."
    ]
    return table("Kernels of norms, by inspection and measured", fields, {"": rows}, notes)


def constrained_artifacts(rows: Rows) -> Figure:
    """What artifacts lose by being kept out of dead directions. `rows` are of the schema
    constrained_artifacts.
    """
    fields = (
        words("artifact", "artifact"),
        words("without its part along", "constraint", flexible=True),
        counted("rank", "rank"),
        counted("$d$", "d"),
        share("removed", "removed_share"),
        value("change", "change", "", 2),
        value("rounding", "floor", "", 1),
        value("error before", "error", "", 3),
        value("after", "error_constrained", "", 3),
    )
    sections = {
        plain(f"{row['model']}, {row['norm']}, n = {count(row['n'])}"): rows for row in rows[:1]
    }
    notes = [
        "removed: share of the rows' squared length. change: root mean square of the change over "
        "that of the artifact's output. error: of reconstruction, over the variance."
    ]
    return table("Artifacts kept out of the dead directions", fields, sections, notes)


DRAWINGS = {
    "table3": Drawing("table3", table3),
    "table4": Drawing("table4", table4),
    "table5": Drawing("table5", table5),
    "table6": Drawing("table6", table6),
    "argmin_gamma": Drawing("argmin_gamma", argmin_gamma),
    "precision": Drawing("precision", precision),
    "norm_zoo": Drawing("norm_zoo", norm_zoo),
    "constrained_artifacts": Drawing("constrained_artifacts", constrained_artifacts),
    "estimators": Drawing("estimators", experiment_plots.estimators),
    "sample_budget": Drawing("sample_budget", experiment_plots.sample_budget),
    "figure2": Drawing("figure2", experiment_plots.figure2),
    "figure5": Drawing("figure5", experiment_plots.figure5),
    "figure7": Drawing("figure7", experiment_plots.figure7),
}
