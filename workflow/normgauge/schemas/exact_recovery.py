"""Exact recovery: maps, certificates, null distribution, stragglers, falsifier, tables."""

from __future__ import annotations

from normgauge.tables import BOOL, FLOAT, INT, INTS, STRING, Tables, schema

_RECOVERY_MAP = (
    ("tensor", STRING, "!tensor name"),
    ("dtype", STRING, "!storage grid: float32, float16 or bfloat16"),
    ("part", STRING, "!the part of the model: a block of a stack, counted from 1, or the ends"),
    (
        "population",
        STRING,
        "!what the tensor is: no norm, behind a LayerNorm, behind an RMSNorm, norm, embedding, not "
        "observed",
    ),
    (
        "argument",
        STRING,
        "!what determines it: least squares, gauge line and lattice, two-parameter least squares, "
        "..., or none",
    ),
    (
        "gauge_dimension",
        INT,
        "!directions that the observations do not see and the grid does not fix",
        "directions",
    ),
    ("values", INT, "!stored values", "values"),
    ("determined", INT, "!values with a recovered grid point, claimed or flagged", "values"),
    ("recovered", INT, "!claimed values whose bits are the stored ones", "values"),
    (
        "flagged",
        INT,
        "!values not claimed: their margin is below 4, or they are zeros, whose sign leaves no "
        "trace",
        "values",
    ),
    ("misses", INT, "!claimed values whose bits differ from the stored ones", "values"),
    (
        "min_margin",
        FLOAT,
        "least distance of a value other than zero from a rounding boundary; null when none is "
        "determined",
        "noises",
    ),
    ("norm", STRING, "norm whose output the map reads, or the tensor's own norm"),
    ("null_rank", INT, "directions that the design [X, 1] does not see", "directions"),
    ("null_cosine", FLOAT, "cosine of the measured null vector with (1/g, -C)"),
    (
        "relative_residual",
        FLOAT,
        "largest residual deviation of an output over its root mean square",
    ),
    ("draws", INT, "lattices that the search took", "lattices"),
    (
        "score",
        FLOAT,
        "worst rounding residual over the well determined coordinates, the largest over columns",
        "ulp",
    ),
    ("least_score", FLOAT, "the smallest over columns", "ulp"),
    (
        "stored_score",
        FLOAT,
        "worst rounding residual of the stored columns at their own alpha, pivot moved to zero and "
        "back: what float64 leaves",
        "ulp",
    ),
    (
        "stored_log10_null",
        FLOAT,
        "log10 of the probability that a place elsewhere scores as well as the stored one on "
        "every coordinate: coordinates times log10(2 score)",
    ),
    (
        "extended",
        INT,
        "columns that were fitted again on residuals in extended precision",
        "columns",
    ),
    ("nonpositive", INT, "of a norm's gains, those that are zero or negative", "values"),
    (
        "log10_null",
        FLOAT,
        "log10 of the probability that a wrong place passes all coordinates that move along the "
        "searched line, the largest over columns",
    ),
    ("reason", STRING, "why values are undetermined, where any are"),
    ("seconds", FLOAT, "!time of the solver", "s"),
)

_RECOVERY_NULL = (
    ("low", FLOAT, "!lower end of the bin of the residual at a wrong place", "ulp"),
    ("high", FLOAT, "!upper end of the bin", "ulp"),
    ("count", INT, "!residuals of certified columns at random wrong places", "residuals"),
    ("residuals", INT, "!residuals in all bins", "residuals"),
    (
        "left_out",
        INT,
        "!residuals not counted: of coordinates that the search window moves by less than 16 grid "
        "spacings",
        "residuals",
    ),
    (
        "statistic",
        FLOAT,
        "Kolmogorov-Smirnov distance of all residuals from the uniform distribution; null without "
        "any",
    ),
    ("p", FLOAT, "its p-value"),
)

_RECOVERY_MARGINS = (
    ("module", STRING, "!linear module"),
    ("column", INT, "!output column"),
    (
        "method",
        STRING,
        "!joint fit (the hardest decided value) or held fit (a straggler, the decided coordinates "
        "of its column held)",
    ),
    ("rows", INT, "!observations", "tokens"),
    ("margin", FLOAT, "!margin of the value, or the least of the straggler's", "noises"),
)

_RECOVERY_HARDEST = (
    ("module", STRING, "!linear module"),
    ("column", INT, "!output column"),
    ("input", INT, "!coordinate of the map's input"),
    ("gain", FLOAT, "!effective gain of the norm there"),
    ("weight", FLOAT, "!recovered weight"),
    ("margin", FLOAT, "!margin of the joint fit", "noises"),
)

_EXACT_RECOVERY = (
    ("population", STRING, "!as in recovery_map, or all"),
    ("tensors", INT, "!tensors", "tensors"),
    ("values", INT, "!stored values", "values"),
    ("recovered", INT, "!claimed values whose bits are the stored ones", "values"),
    ("flagged", INT, "!values not claimed", "values"),
    ("undetermined", INT, "!values without a grid point", "values"),
    ("misses", INT, "!claimed values whose bits differ from the stored ones", "values"),
    ("min_margin", FLOAT, "least margin of a value other than zero", "noises"),
    (
        "certificates",
        INT,
        "columns for which every other place on the line was excluded, where there was any",
        "columns",
    ),
    ("most_survivors", INT, "most places that survived for one of them", "places"),
    (
        "falsifier_values",
        INT,
        "stored values solved for once more, on true and on permuted rows, that the true ones "
        "decide",
        "values",
    ),
    (
        "falsifier_matches",
        INT,
        "of these, equal to the stored ones on permuted rows, or claimed there",
        "values",
    ),
    (
        "falsifier_chance",
        INT,
        "matches of permuted rows with the stored values of the next column: what a coarse grid "
        "lets coincide",
        "values",
    ),
    (
        "control_matches",
        INT,
        "of these, equal to the stored ones on true rows by that procedure: all, or it has no "
        "power",
        "values",
    ),
    ("null_residuals", INT, "rounding residuals at wrong places", "residuals"),
    (
        "null_left_out",
        INT,
        "residuals there of coordinates that the search window hardly moves",
        "residuals",
    ),
    (
        "null_statistic",
        FLOAT,
        "Kolmogorov-Smirnov distance of the residuals from the uniform distribution",
    ),
    ("null_p", FLOAT, "its p-value"),
    ("stragglers", INT, "columns that the joint fit left with a margin below 4", "columns"),
    ("chunks", INT, "fresh chunks drawn for them", "chunks"),
    (
        "fresh_outputs",
        STRING,
        "which outputs of these decide: rounded-once or float64; null where none were drawn",
    ),
    ("closed", INT, "stragglers whose least margin is 4 or more in the end", "columns"),
    (
        "closed_float64",
        INT,
        "those with the outputs of the float64 forward pass in the same chunks instead",
        "columns",
    ),
    ("attacked", INT, "features whose embedding gauge the grid alone was tried on", "features"),
    (
        "attack_inside",
        INT,
        "of these, with the stored shift among the survivors: all, or the attack is at fault",
        "features",
    ),
    (
        "attack_survivors",
        INT,
        "median over them of the shifts that keep every row on the grid",
        "shifts",
    ),
    (
        "attack_reached",
        INT,
        "features with exactly one survivor, and that the stored one",
        "features",
    ),
    ("attack_values", INT, "values that these hold in the rows that occurred", "values"),
    ("attack_share", FLOAT, "share of the attacked features that is reached", "%"),
    ("attack_low", FLOAT, "lower end of its 95 % interval (Clopper and Pearson)", "%"),
    ("attack_high", FLOAT, "upper end", "%"),
    ("nonpositive_gains", INT, "gains of norms that are zero or negative", "values"),
    (
        "hardest_rank",
        INT,
        "of the hardest column's weight of least margin: the rank of its 1/|gain| among the inputs",
    ),
    ("hardest_ratio", FLOAT, "that 1/|gain| over the median of the inputs"),
    (
        "extended",
        INT,
        "columns that were fitted again on residuals in extended precision",
        "columns",
    ),
    (
        "second_extended",
        INT,
        "the same on the second arithmetic route; null where one was run",
        "columns",
    ),
    ("minimum_norm_values", INT, "stored values that the minimum-norm fit was tried on", "values"),
    ("minimum_norm_matches", INT, "of these, given by it", "values"),
    ("minimum_norm_distance", FLOAT, "largest deviation of its outputs, over their size"),
    (
        "sha256_equal",
        BOOL,
        "whether the assembled file is the stored one; null where it cannot be assembled",
    ),
    (
        "route_differences",
        INT,
        "values that both arithmetic routes claim with different bits; null where one was run",
        "values",
    ),
    ("seconds", FLOAT, "time of the solver", "s"),
)

_RECOVERY_PARTS = (
    ("part", STRING, "!a block of a stack, counted from 1; ends: what is outside of blocks; whole"),
    ("values", INT, "!stored values", "values"),
    ("recovered", INT, "!claimed values whose bits are the stored ones", "values"),
    ("flagged", INT, "!values not claimed", "values"),
    ("misses", INT, "!claimed values whose bits differ from the stored ones", "values"),
    ("scratch_mb", FLOAT, "!observations on the disk while the part is solved", "MB"),
    ("relay_mb", FLOAT, "!outputs of blocks that are kept for the next part, beside them", "MB"),
    ("observe_seconds", FLOAT, "!time of observing the part", "s"),
    ("observe_mb", FLOAT, "!most memory that the observing process has held so far", "MB"),
    ("solve_seconds", FLOAT, "!time of the solver", "s"),
    ("solve_mb", FLOAT, "!most memory that the solver's process held", "MB"),
)

_RECOVERY_MINIMUM_NORM = (
    ("module", STRING, "!linear module behind a LayerNorm, its first columns"),
    ("norm", STRING, "!the norm whose output it reads"),
    ("values", INT, "!stored values of these columns", "values"),
    ("matches", INT, "!of these, given by the minimum-norm fit, rounded to the grid", "values"),
    ("place_matches", INT, "!of these, given by the recovered places", "values"),
    (
        "distance",
        FLOAT,
        "!largest deviation of the minimum-norm fit's outputs from the observed ones, over their "
        "size",
    ),
    ("place_distance", FLOAT, "the same of the recovered places; null where none was found"),
    ("moved", FLOAT, "median size of what separates the two, over that of the recovered column"),
)

_RECOVERY_CALLS = (
    ("low", FLOAT, "!lower end of the bin of a value's margin in its joint fit", "noises"),
    ("high", FLOAT, "!upper end", "noises"),
    ("values", INT, "!values in the bin, other than zero", "values"),
    ("wrong", INT, "!of these, rounded to another value than the stored one", "values"),
    ("expected", FLOAT, "!how many Gaussian noise of the stated size would make wrong", "values"),
)

_CHECKPOINT = (
    ("model", STRING, "!model id"),
    ("revision", STRING, "!revision"),
)

tables = Tables(
    {
        "recovery_map": schema(*_RECOVERY_MAP),
        "recovery_parts": schema(*_RECOVERY_PARTS),
        "recovery_minimum_norm": schema(*_RECOVERY_MINIMUM_NORM),
        "recovery_calls": schema(*_RECOVERY_CALLS),
        "recovery_certificates": schema(
            ("module", STRING, "!linear module"),
            ("column", INT, "!output column"),
            ("method", STRING, "!sieve (every candidate) or walk (three gaps)"),
            ("candidates", INT, "!places on the line that were tried", "places"),
            ("survivors", INT, "!places at which every coordinate is on the grid", "places"),
            ("half_width", FLOAT, "!half the searched window of alpha"),
            ("tolerance", FLOAT, "!how far alpha may move: min over j of half_ulp(W_j) |g_j|"),
            ("seconds", FLOAT, "!time", "s"),
        ),
        "recovery_null": schema(*_RECOVERY_NULL),
        "recovery_stragglers": schema(
            ("module", STRING, "!linear module"),
            ("column", INT, "!output column"),
            ("coordinates", INTS, "!undecided coordinates; fan_in is the bias"),
            ("first_margin", FLOAT, "!least margin of the joint fit", "noises"),
            ("margin", FLOAT, "!least margin after all evidence", "noises"),
            ("rows", INT, "!observations behind it", "tokens"),
            ("chunks", INT, "!fresh chunks drawn", "chunks"),
            (
                "outputs",
                STRING,
                "which outputs of these decide: rounded-once or float64; null where none were "
                "drawn",
            ),
            (
                "float64_margin",
                FLOAT,
                "the margin with the outputs of the float64 forward pass in these chunks instead",
                "noises",
            ),
            ("within_reach", BOOL, "!whether more observations can be expected to decide it"),
            ("open", BOOL, "!whether it is still undecided and within reach"),
        ),
        "recovery_falsifier": schema(
            ("module", STRING, "!linear module"),
            (
                "values",
                INT,
                "!stored values other than zero that the true rows decide (margin at least 4)",
                "values",
            ),
            (
                "true_matches",
                INT,
                "!values of the solve on true rows, without any test of acceptance, that equal "
                "these",
                "values",
            ),
            ("matches", INT, "!values of the same on permuted rows that equal these", "values"),
            (
                "chance_matches",
                INT,
                "!the same of each column's values against the next column's: what the grid lets "
                "coincide",
                "values",
            ),
            ("claimed", INT, "!values that the solver claims on permuted rows", "values"),
            (
                "true_score",
                FLOAT,
                "!median over columns of the worst rounding residual on true rows",
                "ulp",
            ),
            ("permuted_score", FLOAT, "!the same on permuted rows", "ulp"),
            (
                "residual_ratio",
                FLOAT,
                "!residual of the solve on permuted rows over that on true rows",
            ),
        ),
        "recovery_margins": schema(*_RECOVERY_MARGINS),
        "recovery_hardest": schema(*_RECOVERY_HARDEST),
        "recovery_attack": schema(
            ("feature", INT, "!coordinate of the embedding"),
            ("rows", INT, "!table rows that must lie on the grid at once", "rows"),
            (
                "survivors",
                INT,
                "!shifts of one table against the other that keep every row on the grid, of all "
                "there are",
                "shifts",
            ),
            ("inside", BOOL, "!whether the stored shift is among them"),
            (
                "right",
                BOOL,
                "whether the only survivor gives the stored values; null where there is not "
                "exactly one",
            ),
        ),
        "recovery_routes": schema(
            ("tensor", STRING, "!tensor name"),
            ("values", INT, "!stored values", "values"),
            ("both", INT, "!values that both routes claim", "values"),
            ("different", INT, "!values that both claim and whose bits differ", "values"),
            ("one", INT, "!values that only one of them claims", "values"),
            ("extended", INT, "columns fitted again in extended precision on the first", "columns"),
            ("second_extended", INT, "the same on the second", "columns"),
            ("kernels", STRING, "!processor kernels of the first"),
            ("second_kernels", STRING, "!of the second"),
        ),
        "recovery_assembly": schema(
            ("file", STRING, "!file of the checkpoint"),
            ("sha256", STRING, "!its sha256"),
            (
                "assembled_sha256",
                STRING,
                "sha256 of the recovered tensors under its header; null where they cannot be "
                "assembled",
            ),
            ("reason", STRING, "why they cannot"),
        ),
        "exact_recovery_map": schema(*_CHECKPOINT, *_RECOVERY_MAP),
        "exact_recovery": schema(*_CHECKPOINT, *_EXACT_RECOVERY),
        "exact_recovery_parts": schema(*_CHECKPOINT, *_RECOVERY_PARTS),
        "exact_recovery_minimum_norm": schema(*_CHECKPOINT, *_RECOVERY_MINIMUM_NORM),
        "exact_recovery_calls": schema(*_CHECKPOINT, *_RECOVERY_CALLS),
        "exact_recovery_margins": schema(*_CHECKPOINT, *_RECOVERY_MARGINS),
        "exact_recovery_columns": schema(*_CHECKPOINT, *_RECOVERY_HARDEST),
        "exact_recovery_null": schema(
            *_CHECKPOINT,
            *_RECOVERY_NULL,
            (
                "score",
                FLOAT,
                "worst rounding residual at the recovered places of the checkpoint",
                "ulp",
            ),
        ),
    }
)
