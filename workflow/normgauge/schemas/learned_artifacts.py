"""Learned artifacts carried by recovered gauges, and their names audited."""

from __future__ import annotations

from normgauge.tables import BOOL, FLOAT, INT, STRING, Tables, schema

_CHECKPOINT = (
    ("model", STRING, "!model id"),
    ("revision", STRING, "!revision"),
    ("norm_kind", STRING, "!norm on the residual stream"),
    ("placement", STRING, "!where the norms sit"),
)
_VERDICT = (
    "!passed: the loss or error differs from the reference by more than 0.1; failed; or no power: "
    "the effect is not detectable, or the content is off by too little"
)
_LEARNED = (
    ("artifact", STRING, "!steering vector, dictionary or LoRA adapter, learned on the checkpoint"),
    ("space", STRING, "!what the gauge moves: the residual stream or the feed-forward units"),
    ("site", STRING, "!where it acts"),
    ("strength", FLOAT, "of a steering vector: how many times the difference of means is added"),
    ("seed", INT, "!seed of the recorded gauge"),
    ("measure", STRING, "!what it lowers: nats per token, or squared error over variance"),
    ("without", FLOAT, "!the measure without it"),
    ("reference", FLOAT, "!the measure with it, where it was learned"),
    ("signed_value", FLOAT, "!on the gauged model, moved by the recovered gauge"),
    ("permutation_value", FLOAT, "!moved by the permutation of the recovered gauge alone"),
    ("raw_value", FLOAT, "!not moved"),
    ("effect", FLOAT, "!without minus reference"),
    ("effect_error", FLOAT, "standard error of the effect over held-out windows (jackknife)"),
    ("detectable", BOOL, "!whether the effect exceeds 0.1; else no share of it is called"),
    ("signed_kept", FLOAT, "share of the effect kept by the recovered gauge", "share"),
    ("permutation_kept", FLOAT, "share kept by the permutation alone", "share"),
    ("raw_kept", FLOAT, "share kept when not moved", "share"),
    (
        "permutation_error",
        FLOAT,
        "!squared error of the content by the permutation alone over its squared length",
    ),
    ("raw_error", FLOAT, "!the same when not moved"),
    ("places_recovered", FLOAT, "!share of places that are those recorded", "share"),
    ("signs_recovered", FLOAT, "!share of places with signs that are", "share"),
    ("negative", FLOAT, "!share of negative signs in the recorded gauge", "share"),
    ("features", INT, "features of a dictionary", "features"),
    ("active_features", FLOAT, "mean number that fire at once (L0)", "features"),
    ("dead_features", FLOAT, "share that fire at no learned position", "share"),
    ("rank", INT, "rank of an adapter"),
    ("steps", INT, "steps it was learned for", "steps"),
    ("tolerance", FLOAT, "!share of an effect that the recovered gauge may lose"),
    (
        "transported",
        STRING,
        "!passed: the recovered gauge keeps the effect within tolerance, beside a control that has "
        "power; failed; or no power",
    ),
    ("permutation_control", STRING, _VERDICT),
    ("raw_control", STRING, _VERDICT),
)
_NAMED = (
    (
        "claim",
        STRING,
        "!what names coordinates: attribution, activity, the contrast of prose and code, "
        "feed-forward units, features of a dictionary",
    ),
    ("site", STRING, "!site id"),
)

tables = Tables(
    {
        "learned_artifact": schema(*_LEARNED),
        "learned_audit": schema(
            *_NAMED,
            ("seed", INT, "!seed of the recorded gauge"),
            ("top", INT, "!coordinates named", "coordinates"),
            ("width", INT, "!coordinates to name", "coordinates"),
            ("raw_overlap", FLOAT, "!share of the names that stay the same", "share"),
            (
                "mapped_overlap",
                FLOAT,
                "!share that agree once the recovered gauge is applied to them",
                "share",
            ),
            ("chance", FLOAT, "!overlap of two random sets of that size", "share"),
            ("relative_deviation", FLOAT, "!of the outputs, as in equivalence"),
            (
                "recovered",
                FLOAT,
                "!share of the space's coordinates that are recovered with their signs",
                "share",
            ),
        ),
        "learned_artifacts": schema(*_CHECKPOINT, *_LEARNED),
        "learned_audits": schema(
            *_CHECKPOINT,
            *_NAMED,
            ("seeds", INT, "!recorded gauges", "seeds"),
            ("top", INT, "!coordinates named", "coordinates"),
            ("width", INT, "!coordinates to name", "coordinates"),
            ("chance", FLOAT, "!overlap of two random sets of that size", "share"),
            ("raw_overlap", FLOAT, "!mean share of the names that stay the same", "share"),
            ("raw_overlap_max", FLOAT, "!the largest over seeds", "share"),
            ("mapped_overlap", FLOAT, "!mean share that agree once mapped", "share"),
            ("mapped_overlap_min", FLOAT, "!the smallest over seeds", "share"),
            ("recovered", FLOAT, "!mean share of coordinates recovered", "share"),
            ("relative_deviation", FLOAT, "!largest deviation of the outputs"),
        ),
    }
)
