"""Exact recovery: maps, certificates, null distribution, stragglers, falsifier, tables."""

from __future__ import annotations

from normgauge.tables import BOOL, FLOAT, INT, INTS, STRING, Tables, schema

_RECOVERY_MAP = (
    ("tensor", STRING, "!tensor name"),
    ("dtype", STRING, "!storage grid: float32, float16 or bfloat16"),
    ("population", STRING, "!what the tensor is: no norm, behind a LayerNorm, behind an RMSNorm, norm, embedding, not observed"),
    ("argument", STRING, "!what determines it: least squares, gauge line and lattice, two-parameter least squares, ..., or none"),
    ("gauge_dimension", INT, "!directions that the observations do not see and the grid does not fix", "directions"),
    ("values", INT, "!stored values", "values"),
    ("determined", INT, "!values with a recovered grid point, claimed or flagged", "values"),
    ("recovered", INT, "!claimed values whose bits are the stored ones", "values"),
    ("flagged", INT, "!values not claimed because their margin is below 4", "values"),
    ("misses", INT, "!claimed values whose bits differ from the stored ones", "values"),
    ("min_margin", FLOAT, "least distance from a rounding boundary; null when nothing is determined", "noises"),
    ("norm", STRING, "norm whose output the map reads, or the tensor's own norm"),
    ("null_rank", INT, "directions that the design [X, 1] does not see", "directions"),
    ("null_cosine", FLOAT, "cosine of the measured null vector with (1/g, -C)"),
    ("relative_residual", FLOAT, "largest residual deviation of an output over its root mean square"),
    ("draws", INT, "lattices that the search took", "lattices"),
    ("score", FLOAT, "worst rounding residual over the well determined coordinates", "ulp"),
    ("log10_null", FLOAT, "log10 of the probability that a wrong place on the line passes, the largest over columns"),
    ("reason", STRING, "why values are undetermined, where any are"),
    ("seconds", FLOAT, "!time of the solver", "s"),
)

_RECOVERY_NULL = (
    ("low", FLOAT, "!lower end of the bin of the residual at a wrong place", "ulp"),
    ("high", FLOAT, "!upper end of the bin", "ulp"),
    ("count", INT, "!residuals of certified columns at random wrong places", "residuals"),
)

_CHECKPOINT = (
    ("model", STRING, "!model id"),
    ("revision", STRING, "!revision"),
)

tables = Tables(
    {
        "recovery_map": schema(*_RECOVERY_MAP),
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
            ("within_reach", BOOL, "!whether more observations can be expected to decide it"),
            ("open", BOOL, "!whether it is still undecided and within reach"),
        ),
        "recovery_falsifier": schema(
            ("module", STRING, "!linear module"),
            ("values", INT, "!values that the solve on permuted rows was tried on", "values"),
            ("claimed", INT, "!values that it claims", "values"),
            ("matches", INT, "!values of it that equal the stored ones", "values"),
            ("residual_ratio", FLOAT, "!its residual over that of the true pairing"),
        ),
        "recovery": schema(*_CHECKPOINT, *_RECOVERY_MAP),
        "recovery_calibration": schema(
            *_CHECKPOINT,
            *_RECOVERY_NULL,
            ("score", FLOAT, "worst rounding residual at the recovered places of the checkpoint", "ulp"),
        ),
    }
)
