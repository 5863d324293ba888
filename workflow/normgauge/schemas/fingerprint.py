"""The fingerprint of the residual stream: measurements, the twins' measurements, tables and
figures.
"""

from __future__ import annotations

import pyarrow as pa

from normgauge.tables import BOOL, FLOAT, FLOATS_BY_NAME, INT, INTS, STRING, STRINGS, Tables, schema

_PLACE = (
    ("site", STRING, "!site id, e.g. decoder/block.3/output"),
    ("stack", STRING, "!residual stream: encoder or decoder"),
    ("block", INT, "!0 for the embedding, 1..L for blocks, L+1 for the terminal norm"),
    (
        "tap",
        STRING,
        "!embedding, output, after_attention, after_cross_attention, terminal_norm, or the Schur "
        "site's name",
    ),
    ("norm", STRING, "norm whose output the activation is, if any"),
    ("n", INT, "!samples (token positions)", "tokens"),
    (
        "distinct_rows",
        INT,
        "different samples among the n, where the input may have few: X_0 and what block 1 makes "
        "of it alone",
        "rows",
    ),
    ("d", INT, "!width of the site", "coordinates"),
    ("forward_dtype", STRING, "!arithmetic of the forward pass"),
    ("accumulation", STRING, "!cov32, cov64 or tsqr64"),
)

_SPECTRUM = (
    (
        "sigma_min",
        FLOAT,
        "!smallest singular value of the centred activations, not divided by sqrt(n)",
        "activation",
    ),
    (
        "sigma_active_min",
        FLOAT,
        "smallest singular value above both floors; null when none is",
        "activation",
    ),
    (
        "sigma_at_rank",
        FLOAT,
        "the r0-th largest singular value, r0 = active_rank of the stream's embedding; null at or "
        "below the floor",
        "activation",
    ),
    ("sigma_median", FLOAT, "!median singular value of the centred activations", "activation"),
    ("sigma_max", FLOAT, "!largest singular value of the centred activations", "activation"),
    ("active_rank", INT, "!number of singular values above both floors", "directions"),
    (
        "effective_rank",
        FLOAT,
        "!exp of the entropy of the normalised singular values",
        "directions",
    ),
    (
        "null_dimension",
        INT,
        "!number of singular values at or below the larger floor",
        "directions",
    ),
    (
        "bottom_sine",
        FLOAT,
        "!bound on the sine of the angle by which rounding may have turned the bottom singular "
        "vector; 1: not determined",
    ),
    (
        "cos_gamma_inv",
        FLOAT,
        "|cos| of the bottom singular vector with 1/gamma (with the zero-gain axes where gains are "
        "zero); null where not determined",
    ),
    (
        "cos_ones",
        FLOAT,
        "|cos| of the bottom singular vector with the all-ones vector; null where not determined",
    ),
    (
        "cos_min_gain",
        FLOAT,
        "|cos| of the bottom singular vector with the axis of the smallest |gamma|; null where not "
        "determined",
    ),
    (
        "cos_gamma_inv_rest",
        FLOAT,
        "cos_gamma_inv without the axes of the collapsed gains (of the smallest where none is) in "
        "both; null where rounding is left",
    ),
    (
        "null_cos_gamma_inv",
        FLOAT,
        "length of the projection of 1/gamma onto the directions at or below the floor",
    ),
    (
        "null_cos_gamma_inv_rest",
        FLOAT,
        "the same of 1/gamma without the axes of the collapsed gains, scaled to length 1",
    ),
    (
        "null_cos_ones",
        FLOAT,
        "!length of the projection of the all-ones vector onto the directions at or below the "
        "floor",
    ),
    ("min_gain_share", FLOAT, "share of |1/gamma|^2 on the axis of the smallest |gamma|", "share"),
    ("collapsed_gains", INT, "gains below a tenth of the mean |gamma|", "coordinates"),
    ("relative_gamma_inv", FLOAT, "|X_centred v| / sigma_max along v = 1/gamma"),
    ("cos_beta_gamma_inv", FLOAT, "|cos| of the norm's bias with 1/gamma; null without bias"),
    (
        "gamma",
        STRING,
        "norm whose gain is used for 1/gamma (the site's own, else the terminal norm)",
    ),
    ("raw_sigma_min", FLOAT, "!sigma_min of the uncentred activations", "activation"),
    ("raw_sigma_active_min", FLOAT, "sigma_active_min of the uncentred activations", "activation"),
    ("raw_sigma_median", FLOAT, "!sigma_median of the uncentred activations", "activation"),
    ("raw_sigma_max", FLOAT, "!sigma_max of the uncentred activations", "activation"),
    ("raw_active_rank", INT, "!active_rank of the uncentred activations", "directions"),
    ("raw_effective_rank", FLOAT, "!effective_rank of the uncentred activations", "directions"),
    ("raw_null_dimension", INT, "!null_dimension of the uncentred activations", "directions"),
    ("raw_cos_gamma_inv", FLOAT, "cos_gamma_inv of the uncentred activations"),
    ("raw_null_cos_gamma_inv", FLOAT, "null_cos_gamma_inv of the uncentred activations"),
    ("raw_cos_ones", FLOAT, "cos_ones of the uncentred activations"),
    (
        "ratio_to_embedding",
        FLOAT,
        "sigma_active_min over the embedding's; null when either is null",
    ),
    (
        "fixed_rank_ratio",
        FLOAT,
        "sigma_at_rank over the embedding's: the same r0 on both sides; null when either is null",
    ),
    (
        "fixed_rank_ratio_upper",
        FLOAT,
        "upper bound on it where sigma_at_rank lies at or below the floor; null elsewhere",
    ),
    (
        "forward_floor",
        FLOAT,
        "!raw_sigma_max times the machine epsilon of the forward pass",
        "activation",
    ),
    (
        "accumulator_floor",
        FLOAT,
        "!sigma_max times 2 sqrt(eps) of a covariance accumulator, or d eps of the orthogonal one",
        "activation",
    ),
    ("flags", STRINGS, "!what limits the row; the flags are listed in docs/dead_directions.md"),
)

_SCHUR = (
    ("lambda_min", FLOAT, "!smallest eigenvalue of A = X^T X / n, uncentred", "activation squared"),
    ("lambda_max", FLOAT, "!largest eigenvalue of A", "activation squared"),
    (
        "quadratic_form",
        FLOAT,
        "u^T A u with u = (1/gamma)/|1/gamma|; null where no norm feeds the site",
        "activation squared",
    ),
    (
        "delta",
        FLOAT,
        "1 - lambda_min / (u^T A u); null where no norm feeds the site or rounding made u^T A u "
        "negative",
    ),
    (
        "delta_recovered",
        FLOAT,
        "delta, or 1 - |lambda_min| / |u^T A u| where rounding made both negative (published "
        "recovery)",
    ),
    (
        "delta_lower",
        FLOAT,
        "lower bound on delta where lambda_min, but not u^T A u, lies at or below the floor; null "
        "elsewhere",
    ),
    ("recovered", BOOL, "!whether the recovery applied (both negative, above -1e-4)"),
    (
        "axis_minimum",
        FLOAT,
        "!smallest diagonal entry of A: the best axis-aligned direction",
        "activation squared",
    ),
    (
        "floor",
        FLOAT,
        "!eigenvalue floor: rounding of the forward pass or the accumulation (dead_directions.md, "
        "Schur ratio)",
        "activation squared",
    ),
    (
        "below_floor",
        BOOL,
        "!whether u^T A u (where there is none: lambda_min) lies at or below the floor, so that "
        "delta is noise",
    ),
    (
        "bottom_cos_gamma_inv",
        FLOAT,
        "|cos| of the bottom eigenvector of A with 1/gamma; null without a norm or where not "
        "determined",
    ),
    (
        "predicted_quadratic_form",
        FLOAT,
        "(beta . u)^2, which u^T A u is behind a LayerNorm; this and the rest null elsewhere",
        "activation squared",
    ),
    (
        "mahalanobis_squared",
        FLOAT,
        "T^2 = m^T C^+ m: squared Mahalanobis length of the mean m of the norm's output, C its "
        "covariance",
    ),
    ("mahalanobis_error", FLOAT, "first-order bound on the error of T^2 by rounding"),
    (
        "mahalanobis_unresolved",
        INT,
        "directions off the kernel at or below the floor, left out: above 0 T^2 is a lower bound",
        "directions",
    ),
    ("predicted_ratio_low", FLOAT, "lower end of what R = lambda_min / u^T A u must be"),
    (
        "predicted_ratio",
        FLOAT,
        "1 / (1 + T^2): R to first order, and its upper end but for rounding; null when (beta . "
        "u)^2 is 0",
    ),
    ("predicted_ratio_high", FLOAT, "upper end of R with the error of T^2"),
    ("flags", STRINGS, "!as in fingerprint"),
)

_STACK = (
    ("model", STRING, "!model id"),
    ("revision", STRING, "!revision"),
    ("stack", STRING, "!residual stream"),
    ("primary", BOOL, "!whether it is the stream that ends in the model's output"),
    ("family", STRING, "!architecture family"),
    ("provenance", STRING, "!published, trained here, or random initialisation"),
    ("precision", STRING, "!stored precision: full, half or quantised"),
    ("objective", STRING, "training objective, from the model table"),
    ("placement", STRING, "!pre-norm, post-norm, sandwich or parallel pre-norm"),
    ("norm_kind", STRING, "!norm kind, by the class of the stream's norms"),
    ("norm_kind_parameters", STRING, "!norm kind read from the stored parameters alone"),
    ("norm_kind_activations", STRING, "!norm kind read from activations alone"),
    ("norm_kinds_agree", BOOL, "!whether the three agree"),
    ("blocks", INT, "!L", "blocks"),
    ("width", INT, "!h", "coordinates"),
    ("n", INT, "!samples", "tokens"),
    ("n_over_d", FLOAT, "!samples per coordinate", "tokens per coordinate"),
    (
        "distinct_over_d",
        FLOAT,
        "different samples of X_0 per coordinate: with rotary positions one per token type",
        "rows per coordinate",
    ),
    ("forward_dtype", STRING, "!arithmetic of the forward pass"),
    ("accumulation", STRING, "!accumulation method of the block outputs"),
    ("body_sigma_low", FLOAT, "smallest sigma_active_min over X_1..X_L", "activation"),
    ("body_sigma_high", FLOAT, "largest sigma_active_min over X_1..X_L", "activation"),
    (
        "behaviour",
        STRING,
        "!of fixed_rank_ratio: depth-invariant, intermediate-dip, depth-decreasing, undetermined "
        "(reason), or not applicable (post-norm)",
    ),
    (
        "behaviour_smallest_active",
        STRING,
        "!the same of ratio_to_embedding, the published statistic",
    ),
    ("min_ratio", FLOAT, "smallest ratio_to_embedding over X_1..X_L"),
    ("min_ratio_block", INT, "block of min_ratio"),
    ("max_ratio", FLOAT, "largest ratio_to_embedding over X_1..X_L"),
    ("output_ratio", FLOAT, "ratio_to_embedding of X_L"),
    ("first_block_max_ratio", FLOAT, "largest sigma_active_min over X_1..X_L over that of X_1"),
    ("body_ratio", FLOAT, "largest sigma_active_min over X_1..X_L over the smallest"),
    ("fixed_rank", INT, "!r0, the active rank of the embedding X_0", "directions"),
    ("fixed_rank_min_ratio", FLOAT, "smallest fixed_rank_ratio over X_1..X_L"),
    ("fixed_rank_min_ratio_block", INT, "block of fixed_rank_min_ratio"),
    ("fixed_rank_max_ratio", FLOAT, "largest fixed_rank_ratio over X_1..X_L"),
    ("fixed_rank_output_ratio", FLOAT, "fixed_rank_ratio of X_L"),
    (
        "fixed_rank_below_floor",
        INT,
        "!blocks whose r0-th singular value lies at or below the floor",
        "blocks",
    ),
    (
        "post_norm_ratio",
        FLOAT,
        "ratio of sigma_active_min after the terminal norm to the embedding's",
    ),
    (
        "first_block_post_norm_ratio",
        FLOAT,
        "sigma_active_min after the terminal norm over that of X_1",
    ),
    (
        "post_norm_forward_dtype",
        STRING,
        "forward arithmetic behind the post-norm columns: the most accurate one captured",
    ),
    (
        "post_norm_cos_gamma_inv",
        FLOAT,
        "|cos(u_bot, 1/gamma)| after the terminal norm (post-norm: at the last block output); with "
        "the null directions if several",
    ),
    (
        "post_norm_null_dimension",
        INT,
        "directions at or below the floor there; above 1 the bottom one is not determined",
        "directions",
    ),
    (
        "post_norm_bottom_sine",
        FLOAT,
        "bound on the sine of the angle by which rounding may have turned u_bot; 1: not determined",
    ),
    (
        "post_norm_cos_ones",
        FLOAT,
        "|cos(u_bot, 1)| at the same place, with the null directions if several",
    ),
    (
        "post_norm_cos_min_gain",
        FLOAT,
        "|cos(u_bot, e_i)|, i of the smallest |gamma|; null where u_bot is not determined",
    ),
    ("post_norm_min_gain_share", FLOAT, "share of |1/gamma|^2 on that axis", "share"),
    (
        "post_norm_cos_gamma_inv_rest",
        FLOAT,
        "post_norm_cos_gamma_inv without the axes of the collapsed gains (of the smallest where "
        "none is)",
    ),
    ("post_norm_raw_cos_gamma_inv", FLOAT, "the uncentred counterpart"),
    ("post_norm_cos_beta_gamma_inv", FLOAT, "|cos(beta, 1/gamma)| of that norm"),
    ("random_direction_null", FLOAT, "!1/sqrt(width): the cosine of two random directions"),
    ("protocol", STRINGS, "!failed protocol checks, empty when all pass"),
    ("flags", STRINGS, "!flags of the rows behind this one"),
)

Field = tuple[str, pa.DataType, str] | tuple[str, pa.DataType, str, str]


def _errors(*names: str, unit: str = "") -> tuple[Field, ...]:
    """A column `<name>_se` for each of these columns."""
    text = (
        "standard error over sequences of {} (jackknife); null where it has none or rounding "
        "hides it"
    )
    return tuple((f"{name}_se", FLOAT, text.format(name), unit) for name in names)


def _seed_range(*names: str, unit: str = "") -> tuple[Field, ...]:
    """Columns `<name>_seed_low` and `<name>_seed_high` for each of these columns."""
    ends = (("low", "smallest"), ("high", "largest"))
    return tuple(
        (f"{name}_seed_{end}", FLOAT, f"{word} {name} over seeds", unit)
        for name in names
        for end, word in ends
    )


_REPLICATES: tuple[Field, ...] = (
    (
        "group_samples",
        INTS,
        "samples of each group of sequences that is left out in turn; null where none is",
        "tokens",
    ),
    (
        "replicates",
        FLOATS_BY_NAME,
        "statistic -> its values without each group in turn; of those that have a standard error",
    ),
)

_SPECTRUM_ERRORS = (
    *_errors("sigma_active_min", "sigma_at_rank", unit="activation"),
    *_errors(
        "ratio_to_embedding",
        "fixed_rank_ratio",
        "cos_gamma_inv",
        "cos_ones",
        "cos_min_gain",
        "cos_gamma_inv_rest",
    ),
    *_errors("raw_cos_gamma_inv"),
)

_SCHUR_ERRORS = (
    *_errors("lambda_min", "quadratic_form", unit="activation squared"),
    *_errors("delta", "bottom_cos_gamma_inv", "mahalanobis_squared", "predicted_ratio"),
)

_STACK_ERRORS = (
    *_errors("body_sigma_low", "body_sigma_high", unit="activation"),
    *_errors("min_ratio", "max_ratio", "output_ratio"),
    *_errors("first_block_max_ratio", "body_ratio", "first_block_post_norm_ratio"),
    *_errors(
        "fixed_rank_min_ratio", "fixed_rank_max_ratio", "fixed_rank_output_ratio", "post_norm_ratio"
    ),
    *_errors(
        "post_norm_cos_gamma_inv",
        "post_norm_cos_ones",
        "post_norm_cos_min_gain",
        "post_norm_cos_gamma_inv_rest",
    ),
    *_errors("post_norm_raw_cos_gamma_inv"),
)

_SITE: tuple[Field, ...] = (*_PLACE, *_SPECTRUM, *_SPECTRUM_ERRORS, *_REPLICATES)
_SCHUR_SITE: tuple[Field, ...] = (*_PLACE, *_SCHUR, *_SCHUR_ERRORS, *_REPLICATES)
_STREAM: tuple[Field, ...] = (*_STACK, *_STACK_ERRORS, *_REPLICATES)

_GROWTH = (
    "max_ratio",
    "min_ratio",
    "first_block_max_ratio",
    "body_ratio",
    "fixed_rank_max_ratio",
    "fixed_rank_min_ratio",
    "post_norm_ratio",
    "first_block_post_norm_ratio",
)
"""Columns of `stacks` that the trained-vs-random table compares."""

_SEED = (("seed", INT, "!initialisation seed"),)

_INPUTS = (
    "!what the model read: the corpus, of which random-* are generated, and the token before each "
    "sequence if any; "
    "audio is seeded Gaussian noise for any corpus"
)

_IDENTITY = (
    ("model", STRING, "!model id"),
    ("revision", STRING, "!revision; pooled random initialisations are joined by +"),
    ("stack", STRING, "!residual stream"),
    ("norm_kind", STRING, "!norm kind, by the class of the stream's norms"),
    ("placement", STRING, "!norm placement"),
    ("provenance", STRING, "!published, trained here, or random initialisation"),
    ("precision", STRING, "!stored precision: full, half or quantised"),
    ("stored_as", STRING, "!number format that holds most of the stored values"),
    ("inputs", STRING, _INPUTS),
)

_ARITHMETIC = (
    ("forward_dtype", STRING, "!arithmetic of the forward pass"),
    ("accumulation", STRING, "!accumulation method"),
)

_KIND = (
    ("kind", STRING, "!trained or re-initialised"),
    ("seed", INT, "initialisation seed; null for the checkpoint itself"),
)

_STATUS = (
    "!against the published row: reproduced, deviates, lower bound (that does not exclude "
    "it), below floor, not measured, or not published"
)

_DEVIATIONS = "!columns whose value differs from the published one by more than its tolerance"


def _predicted_delta(part: str) -> tuple[Field, ...]:
    return (
        (
            f"{part}_lower_bound",
            BOOL,
            "!whether the median is a lower bound: one of the values below it is",
        ),
        (
            f"{part}_predicted",
            FLOAT,
            "1 - the median of 1 / (1 + T^2) over the same values; null but behind a LayerNorm "
            "with (beta . u)^2 > 0",
        ),
        (f"{part}_mahalanobis_squared", FLOAT, "median of T^2 over the same values"),
        (
            f"{part}_bottom_cos_gamma_inv",
            FLOAT,
            "median of |cos| of the bottom eigenvector of A with 1/gamma over the same values",
        ),
        *_errors(
            f"{part}_predicted", f"{part}_mahalanobis_squared", f"{part}_bottom_cos_gamma_inv"
        ),
    )


tables = Tables(
    {
        "fingerprint": schema(*_SITE),
        "schur": schema(*_SCHUR_SITE),
        "stacks": schema(*_STREAM),
        "summary": schema(*_STREAM),
        "reinitialised_fingerprint": schema(*_SEED, *_SITE),
        "reinitialised_schur": schema(*_SEED, *_SCHUR_SITE),
        "reinitialised_stacks": schema(*_SEED, *_STREAM),
        "table1": schema(
            *_IDENTITY,
            ("width", INT, "!h", "coordinates"),
            ("n", INT, "!samples", "tokens"),
            *_ARITHMETIC,
            ("random_seeds", INT, "!initialisations pooled", "seeds"),
            ("random_values", INT, "!values pooled: one per block and seed", "values"),
            (
                "random_median",
                FLOAT,
                "median of delta_recovered at the query/key/value input over blocks and seeds",
            ),
            *_errors("random_median"),
            *_seed_range("random_median"),
            ("random_first_quartile", FLOAT, "first quartile"),
            ("random_third_quartile", FLOAT, "third quartile"),
            *_predicted_delta("random"),
            (
                "random_below_floor",
                FLOAT,
                "share of the pooled values that lie below their floor",
                "share",
            ),
            (
                "random_quadratic_form",
                FLOAT,
                "median of u^T A u over the same values",
                "activation squared",
            ),
            (
                "random_floor",
                FLOAT,
                "median eigenvalue floor over the same values",
                "activation squared",
            ),
            ("trained_values", INT, "!values pooled: one per block", "values"),
            ("trained_median", FLOAT, "median over blocks, trained checkpoint"),
            *_errors("trained_median"),
            ("trained_first_quartile", FLOAT, "first quartile"),
            ("trained_third_quartile", FLOAT, "third quartile"),
            *_predicted_delta("trained"),
            (
                "trained_below_floor",
                FLOAT,
                "share of the values that lie below their floor",
                "share",
            ),
            (
                "trained_bias_form",
                FLOAT,
                "median of (beta . u)^2, which u^T A u is behind a LayerNorm",
                "activation squared",
            ),
            (
                "trained_directional_beat",
                FLOAT,
                "median of the smallest diagonal entry of A, the best axis, over u^T A u, where "
                "that lies above its floor",
            ),
            ("trained_directional_beat_low", FLOAT, "smallest of them"),
            ("trained_directional_beat_high", FLOAT, "largest of them"),
            (
                "trained_quadratic_form",
                FLOAT,
                "median of u^T A u over the same values",
                "activation squared",
            ),
            (
                "trained_floor",
                FLOAT,
                "median eigenvalue floor over the same values",
                "activation squared",
            ),
            ("published_random_median", FLOAT, "published median at random initialisation"),
            ("published_random_first_quartile", FLOAT, "published first quartile"),
            ("published_random_third_quartile", FLOAT, "published third quartile"),
            ("published_trained_median", FLOAT, "published trained value"),
            ("random_status", STRING, _STATUS),
            ("trained_status", STRING, _STATUS),
            ("deviations", STRINGS, _DEVIATIONS),
        ),
        "table2": schema(
            (
                "kind",
                STRING,
                "!trained, re-initialised (the same architecture from seeds), or random "
                "initialisation (a model known only so)",
            ),
            (
                "seeds",
                INT,
                "!initialisations pooled: medians of numbers, counts of words; 0 for a checkpoint",
                "seeds",
            ),
            ("stored_as", STRING, "!number format that holds most of the stored values"),
            ("inputs", STRING, _INPUTS),
            *_STACK,
            *_STACK_ERRORS,
            *_seed_range("body_sigma_low", "body_sigma_high", unit="activation"),
            *_seed_range("post_norm_cos_gamma_inv", "post_norm_cos_ones"),
            (
                "body_sigma_low_per_sqrt_n",
                FLOAT,
                "body_sigma_low / sqrt(n): standard deviation along its direction",
                "activation",
            ),
            ("body_sigma_high_per_sqrt_n", FLOAT, "body_sigma_high / sqrt(n)", "activation"),
            ("published_blocks", INT, "published L", "blocks"),
            ("published_width", INT, "published h", "coordinates"),
            (
                "published_n_over_d",
                FLOAT,
                "published samples per coordinate",
                "tokens per coordinate",
            ),
            (
                "published_n",
                INT,
                "samples behind the published row (samples in config/published/)",
                "tokens",
            ),
            ("published_body_sigma_low", FLOAT, "published smallest body sigma", "activation"),
            ("published_body_sigma_high", FLOAT, "published largest body sigma", "activation"),
            (
                "published_body_sigma_low_per_sqrt_n",
                FLOAT,
                "the same over sqrt(published_n): what is compared",
                "activation",
            ),
            (
                "published_body_sigma_high_per_sqrt_n",
                FLOAT,
                "the same over sqrt(published_n): what is compared",
                "activation",
            ),
            ("published_behaviour_smallest_active", STRING, "published behaviour"),
            ("published_post_norm_cos_gamma_inv", FLOAT, "published |cos(u_bot, 1/gamma)|"),
            ("published_post_norm_cos_ones", FLOAT, "published |cos(u_bot, 1)|"),
            ("status", STRING, _STATUS),
            ("deviations", STRINGS, _DEVIATIONS),
        ),
        "trained_vs_random": schema(
            *_IDENTITY,
            ("blocks", INT, "!L", "blocks"),
            ("width", INT, "!h", "coordinates"),
            ("n", INT, "!samples", "tokens"),
            *_ARITHMETIC,
            (
                "random_seeds",
                INT,
                "!re-initialisations, or seeds of a random initialisation",
                "seeds",
            ),
            ("trained_max_ratio", FLOAT, "largest sigma ratio over blocks, trained"),
            ("random_max_ratio", FLOAT, "median over seeds of the largest ratio, re-initialised"),
            ("trained_min_ratio", FLOAT, "smallest sigma ratio over blocks, trained"),
            ("random_min_ratio", FLOAT, "median over seeds of the smallest ratio"),
            (
                "trained_fixed_rank_max_ratio",
                FLOAT,
                "largest fixed_rank_ratio over blocks, trained",
            ),
            ("random_fixed_rank_max_ratio", FLOAT, "median over seeds of the largest"),
            (
                "trained_fixed_rank_min_ratio",
                FLOAT,
                "smallest fixed_rank_ratio over blocks, trained",
            ),
            ("random_fixed_rank_min_ratio", FLOAT, "median over seeds of the smallest"),
            (
                "trained_first_block_max_ratio",
                FLOAT,
                "largest sigma over blocks over that of X_1, trained",
            ),
            ("random_first_block_max_ratio", FLOAT, "median over seeds"),
            ("trained_body_ratio", FLOAT, "largest sigma over blocks over the smallest, trained"),
            ("random_body_ratio", FLOAT, "median over seeds"),
            (
                "trained_first_block_post_norm_ratio",
                FLOAT,
                "sigma after the terminal norm over that of X_1, trained",
            ),
            ("random_first_block_post_norm_ratio", FLOAT, "median over seeds"),
            ("trained_post_norm_ratio", FLOAT, "ratio after the terminal norm, trained"),
            ("random_post_norm_ratio", FLOAT, "median over seeds"),
            ("trained_cos_gamma_inv", FLOAT, "post-norm |cos(u_bot, 1/gamma)|, trained"),
            ("random_cos_gamma_inv", FLOAT, "median over seeds"),
            *(
                field
                for name in (*_GROWTH, "cos_gamma_inv")
                for field in (
                    *_errors(f"trained_{name}", f"random_{name}"),
                    *_seed_range(f"random_{name}"),
                )
            ),
            ("published_n", INT, "samples behind the published row", "tokens"),
            ("published_blocks", INT, "published L", "blocks"),
            ("published_trained_max_ratio", FLOAT, "published largest ratio, trained"),
            (
                "published_random_max_ratio",
                FLOAT,
                "published largest ratio at random initialisation",
            ),
            ("published_trained_post_norm_ratio", FLOAT, "published post-norm ratio, trained"),
            (
                "published_random_post_norm_ratio",
                FLOAT,
                "published post-norm ratio at random initialisation",
            ),
            ("trained_status", STRING, _STATUS),
            ("random_status", STRING, _STATUS),
            (
                "reproduced_by",
                STRINGS,
                "!published columns and the readings of them that reproduce them: X_0, X_1, body",
            ),
            ("deviations", STRINGS, _DEVIATIONS),
            (
                "notes",
                STRINGS,
                "!what limits the comparison: the flags of the checkpoint and of its twins",
            ),
        ),
        "figure3": schema(
            *_IDENTITY,
            *_KIND,
            ("block", INT, "!0 for the embedding, 1..L", "block"),
            ("relative_depth", FLOAT, "!block / L"),
            ("n", INT, "!samples", "tokens"),
            *_ARITHMETIC,
            ("sigma_active_min", FLOAT, "smallest active singular value", "activation"),
            *_errors("sigma_active_min", unit="activation"),
            ("ratio_to_embedding", FLOAT, "over the embedding's"),
            *_errors("ratio_to_embedding"),
            (
                "fixed_rank_ratio",
                FLOAT,
                "the same for the r0-th singular value, r0 the active rank of the embedding",
            ),
            *_errors("fixed_rank_ratio"),
            ("floor", FLOAT, "!the larger of the two floors", "activation"),
        ),
        "figure6": schema(
            *_IDENTITY,
            *_KIND,
            ("block", INT, "!block", "block"),
            ("tap", STRING, "!Schur site"),
            ("n", INT, "!samples", "tokens"),
            *_ARITHMETIC,
            ("lambda_min", FLOAT, "!smallest eigenvalue of A", "activation squared"),
            ("quadratic_form", FLOAT, "u^T A u", "activation squared"),
            ("axis_minimum", FLOAT, "!smallest diagonal entry of A", "activation squared"),
            ("delta_recovered", FLOAT, "the Schur complement ratio"),
            ("delta_lower", FLOAT, "lower bound where no more is known"),
            (
                "predicted_quadratic_form",
                FLOAT,
                "(beta . u)^2 behind a LayerNorm",
                "activation squared",
            ),
            ("mahalanobis_squared", FLOAT, "T^2 behind a LayerNorm"),
            ("predicted_ratio", FLOAT, "1 / (1 + T^2), the predicted ratio behind a LayerNorm"),
            *_errors("lambda_min", "quadratic_form", unit="activation squared"),
            *_errors("delta", "predicted_ratio"),
            ("predicted_ratio_low", FLOAT, "lower end of what it must be"),
            ("bottom_cos_gamma_inv", FLOAT, "|cos| of the bottom eigenvector of A with u"),
            ("floor", FLOAT, "!eigenvalue floor", "activation squared"),
            ("below_floor", BOOL, "!whether the value is noise"),
        ),
    }
)
