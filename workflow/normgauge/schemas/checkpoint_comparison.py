"""Checkpoint comparison: inventory, alignment, kernels and nulls of a pair."""

from __future__ import annotations

from normgauge.tables import BOOL, FLOAT, INT, STRING, STRINGS, Tables, schema

tables = Tables(
    {
        "checkpoint_comparison": schema(
            ("model_a", STRING, "!model of A"),
            ("revision_a", STRING, "!revision of A"),
            ("model_b", STRING, "!model of B"),
            ("revision_b", STRING, "!revision of B"),
            ("tensors", INT, "!tensors compared"),
            (
                "unmatched",
                INT,
                "!tensors that one side alone has, outside the part that both share",
            ),
            ("values", INT, "!values compared"),
            ("relative", FLOAT, "!|B - A| over the norm of the mean, all matrices of the blocks"),
            ("relative_to_a", FLOAT, "!the same over |A|"),
            (
                "floor",
                FLOAT,
                "!relative difference that storage rounding gives by itself, of the values that "
                "differ",
            ),
            ("aligned_relative", FLOAT, "!relative, with the gauge between A and B taken out"),
            (
                "residual",
                STRING,
                "gauge of the residual streams: identity, gauge, rotation, or none where they do "
                "not correspond",
            ),
            ("heads", STRING, "the same of the heads"),
            ("units", STRING, "the same of the feed-forward units"),
            ("tests", INT, "!tests of the confirmatory family"),
            ("significant", INT, "!significant ones"),
            ("smallest_p", FLOAT, "smallest p among them"),
            ("strongest", STRING, "the strongest significant component"),
            ("verdict", STRING, "!equal up to storage rounding in one gauge, or changed"),
            ("label", STRING, "!decision: A, B or abstain"),
            (
                "declared_change",
                FLOAT,
                "change of the declared statistic from A to B, with its sign; null without a probe "
                "set",
            ),
            ("declared_p", FLOAT, "p of the declared test, of either sign"),
            (
                "declared_familywise_p",
                FLOAT,
                "its familywise_p: what the decision rests on, beside q",
            ),
        ),
        "checkpoint_comparison_inventory": schema(
            ("tensor", STRING, "!tensor name in the class; of a total, the part that it sums over"),
            (
                "status",
                STRING,
                "!tensor, total, not used (both store it, their class does not use it), A only or "
                "B only",
            ),
            ("block", INT, "block, from 1; null outside the blocks"),
            ("part", STRING, "attention, mlp, norm, embedding or other"),
            ("stored_a", STRING, "dtype in A's file"),
            ("stored_b", STRING, "dtype in B's file"),
            (
                "bits_a",
                INT,
                "mantissa bits of the grid on which A's values of this dtype lie",
                "bits",
            ),
            ("bits_b", INT, "the same of B", "bits"),
            ("values", INT, "number of values"),
            ("changed", FLOAT, "share of values that differ", "share"),
            ("difference", FLOAT, "|B - A| as stored"),
            ("relative", FLOAT, "|B - A| over the norm of the mean of both"),
            ("relative_to_a", FLOAT, "|B - A| / |A|"),
            (
                "floor",
                FLOAT,
                "relative difference that rounding to the grids of both sides gives by itself, of "
                "the values that differ",
            ),
            (
                "above_floor",
                FLOAT,
                "share of the squared difference above that floor, 0 or more",
                "share",
            ),
            ("squared_share", FLOAT, "share in the squared difference of all tensors", "share"),
            ("aligned_relative", FLOAT, "relative, with the gauge between A and B taken out"),
            (
                "invariant_under",
                STRINGS,
                "!groups of gauges on B that do not touch the row as stored",
            ),
        ),
        "checkpoint_comparison_alignment": schema(
            ("group", STRING, "!residual, folds, heads, values, queries or units"),
            ("space", STRING, "!space, norm or attention layer"),
            (
                "found",
                STRING,
                "!identity, gauge, rotation, balanced, or none where A and B do not correspond",
            ),
            (
                "moved",
                FLOAT,
                "!share of coordinates, heads or units that change place or sign",
                "share",
            ),
            (
                "certain",
                FLOAT,
                "!share of certain matches; of heads the mean cosine of matched kernels",
            ),
            (
                "residual_before",
                FLOAT,
                "relative difference of the tensors concerned before this step",
            ),
            ("residual_after", FLOAT, "the same after it"),
        ),
        "checkpoint_comparison_kernels": schema(
            ("family", STRING, "!OV, QK, MLP, trilinear, spectra or recency"),
            ("statistic", STRING, "!see docs/checkpoint_comparison.md"),
            (
                "mode",
                STRING,
                "!raw: stored matrices; folded: norm gains, biases and centring taken into the "
                "maps",
            ),
            ("block", INT, "block, from 1; null when pooled"),
            ("part", STRING, "attention or mlp"),
            ("head", INT, "head, from 0"),
            ("unit", INT, "feed-forward unit, from 0"),
            ("probe", STRING, "probe set"),
            ("label", STRING, "offset, token, term, band, cutoff, contrast or earlier head"),
            ("a", FLOAT, "the statistic of A, where each side has one"),
            ("b", FLOAT, "the statistic of B"),
            ("change", FLOAT, "!b - a; of an even statistic the size of the change"),
            ("odd", BOOL, "!whether swapping A and B turns the sign of the change"),
            (
                "invariant_under",
                STRINGS,
                "!groups of gauges on B that leave the row as it is, without alignment",
            ),
        ),
        "checkpoint_comparison_nulls": schema(
            ("family", STRING, "!confirmatory or exploratory: each is corrected as one family"),
            ("confirmatory", BOOL, "!whether it may decide"),
            ("statistic", STRING, "!statistic that is tested"),
            ("null", STRING, "!what the draws are"),
            ("block", INT, "block, from 1"),
            ("part", STRING, "attention, mlp or embedding"),
            ("head", INT, "head, from 0"),
            ("unit", INT, "the most changed unit of the layer"),
            ("row", INT, "the most changed row of the table"),
            ("token", INT, "the same where the rows are those of tokens"),
            (
                "token_text",
                STRING,
                "that token in the tokenizer's words, where the checkpoint has one",
            ),
            ("probe", STRING, "probe set"),
            ("label", STRING, "table, token, or mode"),
            ("change", FLOAT, "the tested change with its sign, where it has one"),
            (
                "observed",
                FLOAT,
                "!observed value on the scale of the test, larger is more evidence",
            ),
            ("null_mean", FLOAT, "!mean of the draws"),
            ("null_deviation", FLOAT, "!standard deviation of the draws"),
            ("z", FLOAT, "!observed minus mean over deviation"),
            ("reached", INT, "!draws at least as large as the observed value"),
            ("draws", INT, "!draws"),
            ("p", FLOAT, "!(reached + 1) / (draws + 1)"),
            ("smallest_p", FLOAT, "!the smallest p that these draws can give"),
            ("q", FLOAT, "!p adjusted by Benjamini and Hochberg within the family"),
            (
                "familywise_p",
                FLOAT,
                "!probability that the smallest p of the family is at most this p, were all nulls "
                "true",
            ),
            ("significant", BOOL, "!confirmatory, with q and familywise_p at most 0.05"),
        ),
    }
)
