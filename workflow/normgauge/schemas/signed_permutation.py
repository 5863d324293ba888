"""Signed permutations: gauges as files, equivalence, recovery and audits."""

from __future__ import annotations

import pyarrow as pa

from normgauge.tables import BOOL, FLOAT, INT, INTS, STRING, Tables, schema

IN_GROUP, FREE_SIGNS, NO_SIGNS, GREEDY = (
    "in the group",
    "control: free signs",
    "control: no signs",
    "control: greedy",
)
"""How a space is matched: inside the group that it admits, or as a control."""
ALL_SITES = "all sites"
"""In place of a site id: the sites of a space together."""

_CHECKPOINT = (
    ("model", STRING, "!model id"),
    ("revision", STRING, "!revision"),
    ("norm_kind", STRING, "!norm on the residual stream"),
    ("placement", STRING, "!where the norms sit"),
)

_EQUIVALENCE = (
    ("group", STRING, "!what moves, and by which group"),
    (
        "admissible",
        BOOL,
        "!whether the gauge belongs to the model's group; else it is a control that must change "
        "the function",
    ),
    ("seed", INT, "!seed of the random gauge"),
    ("forward_dtype", STRING, "!arithmetic of the forward pass"),
    (
        "parameters",
        STRING,
        "!stored, or constants drawn: gains and biases that a fresh initialisation left constant "
        "are drawn",
    ),
    ("max_abs_deviation", FLOAT, "!largest absolute difference over all outputs", "logit"),
    ("relative_deviation", FLOAT, "!the same over the largest absolute output of its kind"),
    ("tolerance", FLOAT, "!largest relative deviation that counts as the same function"),
    (
        "predicted_effect",
        FLOAT,
        "of a control: how far it is from the group, relative to the states that it moves; null "
        "when admissible",
    ),
    (
        "verdict",
        STRING,
        "!passed: deviation within tolerance when admissible, of a control a thousand times beyond "
        "it; failed; or no power: the control "
        "predicts an effect below a hundred tolerances",
    ),
)

_MATCH = (
    "match",
    STRING,
    "!in the group that the space admits, or a control outside it: free signs where one sign is "
    "common or none, no signs where there "
    "are some, greedy",
)
_POOLED = (
    "pooled",
    BOOL,
    "!whether the correlations of all sites are averaged before the match, or each site is matched "
    "alone",
)
_EFFECTIVE = (
    "effective_tokens",
    FLOAT,
    "independent samples that would tell as much about a matched correlation, by the jackknife "
    "over sequences; median over coordinates",
    "tokens",
)

_RECOVERED = (
    ("part", STRING, "!residual, feed-forward or heads"),
    _MATCH,
    (
        "cost",
        STRING,
        "!what the matching maximises: |C|, C, ±C (the better of both signs), or canonical "
        "correlation",
    ),
    _POOLED,
    ("tokens", INT, "!samples behind the correlation", "tokens"),
    ("width", INT, "!coordinates, units or heads per site", "coordinates"),
    ("sites", INT, "!sites", "sites"),
    ("seeds", INT, "!recorded gauges", "seeds"),
    (
        "permutation_accuracy",
        FLOAT,
        "!mean over sites and seeds of the share matched to the true target",
        "share",
    ),
    ("permutation_accuracy_min", FLOAT, "!the smallest", "share"),
    ("sign_accuracy", FLOAT, "mean share given the true sign; null for heads", "share"),
    ("sign_accuracy_min", FLOAT, "the smallest", "share"),
    (
        "negative",
        FLOAT,
        "mean share of negative signs in the recorded gauges: what a match without signs must "
        "miss; null for heads",
        "share",
    ),
    ("uncertain", FLOAT, "!mean share flagged as uncertain", "share"),
    ("certain_accuracy_min", FLOAT, "smallest share of the others that are true", "share"),
    (
        "map_error",
        FLOAT,
        "largest relative error of recovered scales or value maps; null for the residual stream",
    ),
    ("query_error", FLOAT, "largest relative error of recovered query maps; null but for heads"),
    (
        "condition",
        FLOAT,
        "largest condition of the equations that determine a map; null but for heads",
    ),
    ("certified", FLOAT, "!share of matchings proven to be optimal", "share"),
)

_ALIGNED = (
    ("tokens", INT, "!samples behind the match, from one half of the sequences", "tokens"),
    (
        "reference_tokens",
        INT,
        "!samples behind the reference match, from the other half of the sequences",
        "tokens",
    ),
    ("agreement", FLOAT, "!share of coordinates matched as in the reference", "share"),
    (
        "split_half",
        FLOAT,
        "!share of coordinates matched as by the same number of samples from the other half",
        "share",
    ),
    (
        "site_agreement",
        FLOAT,
        "share of coordinates that a site alone matches as all together do, mean over sites; null "
        "but there",
        "share",
    ),
    ("certain", FLOAT, "!share of coordinates that the matching counts as certain", "share"),
    (
        "certain_agreement",
        FLOAT,
        "share of the coordinates certain in the match and in the reference that have one target "
        "and sign in both; null if none",
        "share",
    ),
    _EFFECTIVE,
    ("negative", FLOAT, "!share of matches with negative sign", "share"),
    ("unmoved", FLOAT, "!share of coordinates matched to their own number", "share"),
)

_HOLONOMY = (
    ("width", INT, "!width of the stream", "coordinates"),
    ("tokens", INT, "!samples behind each match", "tokens"),
    (
        "moved",
        FLOAT,
        "!share of coordinates that the cycle does not bring back to themselves with their sign",
        "share",
    ),
    ("certain", FLOAT, "!share of coordinates that only meet certain matches on the way", "share"),
    (
        "certain_moved",
        FLOAT,
        "share of these that are not brought back; null when there are none",
        "share",
    ),
)

_CONTROLS = tuple(
    (
        f"{way}_control",
        STRING,
        f"!passed: {what} deviates a thousand tolerances or more, as it must; failed; or no power: "
        "the predicted relative error, the root "
        f"of {error}, is below a hundred tolerances",
    )
    for way, what, error in (
        ("permutation", "the permutation alone", "predicted_error"),
        ("raw", "what is not moved", "raw_error"),
    )
)

tables = Tables(
    {
        "gauge": schema(
            ("space", STRING, "!space or attention layer that moves"),
            ("kind", STRING, "!monomial, orthogonal or attention"),
            (
                "shape",
                INTS,
                "!sizes: coordinates; of an attention layer its groups, heads per group, query and "
                "value coordinates per head",
            ),
            (
                "targets",
                INTS,
                "!where each coordinate goes; of an attention layer its group order, then the head "
                "order in each group",
            ),
            ("factors", pa.list_(pa.float64()), "!what each source coordinate is multiplied by"),
            (
                "matrices",
                pa.list_(pa.float64()),
                "!row by row: the orthogonal matrix; of an attention layer its query, then its "
                "value maps",
            ),
        ),
        "equivalence": schema(*_EQUIVALENCE),
        "gauge_recovery": schema(
            ("site", STRING, "!site id"),
            ("part", STRING, "!residual, feed-forward or heads"),
            _MATCH,
            ("sites", INT, "!sites whose correlations are averaged; 1 for a site alone", "sites"),
            ("width", INT, "!coordinates, units or heads that are matched", "coordinates"),
            ("seed", INT, "!seed of the recorded gauge"),
            ("tokens", INT, "!samples behind the correlation", "tokens"),
            _EFFECTIVE,
            (
                "method",
                STRING,
                "!what matched: row argmax, lapjvs or greedy, on |C|, C or ±C; canonical "
                "correlation of heads",
            ),
            (
                "permutation_accuracy",
                FLOAT,
                "!share of coordinates matched to their true target",
                "share",
            ),
            (
                "sign_accuracy",
                FLOAT,
                "share of coordinates given their true sign; null for heads, whose signs are part "
                "of the map",
                "share",
            ),
            (
                "negative",
                FLOAT,
                "share of negative signs in the recorded gauge; null for heads",
                "share",
            ),
            (
                "uncertain",
                FLOAT,
                "!share of coordinates that the matching flags: constant, tied, or not clearly "
                "ahead of a rival",
                "share",
            ),
            (
                "certain_accuracy",
                FLOAT,
                "share of the others whose target and sign are true; null when all are flagged",
                "share",
            ),
            (
                "map_error",
                FLOAT,
                "largest relative error of the certain scales, or of the value maps of certain "
                "heads; null elsewhere",
            ),
            (
                "query_error",
                FLOAT,
                "largest relative error of the query maps of certain heads; null elsewhere",
            ),
            (
                "condition",
                FLOAT,
                "largest condition of the equations that determine a map; null but for heads",
            ),
            (
                "min_margin",
                FLOAT,
                "!smallest margin: matched correlation minus the best rival in its row or column",
            ),
            ("certified", BOOL, "!whether the matching is proven to be optimal"),
            ("seconds", FLOAT, "!time of the matching", "s"),
        ),
        "gauge_alignment": schema(
            ("other", STRING, "!model that is matched to this one, with its revision"),
            ("site", STRING, "!site id, or all sites"),
            ("sites", INT, "!sites whose correlations are averaged; 1 for a site alone", "sites"),
            _MATCH,
            ("width", INT, "!width of the site", "coordinates"),
            *_ALIGNED,
            (
                "sign_certain",
                BOOL,
                "!whether the sign that is common to all coordinates is certain; true where there "
                "is none",
            ),
            (
                "signed_agreement",
                FLOAT,
                "!share of coordinates matched as in the reference with the same sign",
                "share",
            ),
            ("method", STRING, "!what matched"),
            ("certified", BOOL, "!whether the matching is proven to be optimal"),
        ),
        "gauge_holonomy": schema(
            (
                "cycle",
                STRING,
                "!three models, each matched with the next and the last with the first",
            ),
            ("site", STRING, "!site id, or all sites"),
            ("sites", INT, "!sites whose correlations are averaged; 1 for a site alone", "sites"),
            *_HOLONOMY,
        ),
        "gauge_audit": schema(
            (
                "claim",
                STRING,
                "!attribution, active coordinates, difference of means, or active feed-forward "
                "units",
            ),
            ("site", STRING, "!site id"),
            ("seed", INT, "!seed of the recorded gauge"),
            ("top", INT, "!coordinates named", "coordinates"),
            ("width", INT, "!width of the site", "coordinates"),
            ("raw_overlap", FLOAT, "!share of the names that stay the same", "share"),
            (
                "mapped_overlap",
                FLOAT,
                "!share that agree once the gauge is applied to them",
                "share",
            ),
            ("chance", FLOAT, "!overlap of two random sets of that size", "share"),
            ("relative_deviation", FLOAT, "!of the outputs, as in equivalence"),
        ),
        "gauge_transport": schema(
            (
                "artifact",
                STRING,
                "!steering vector, dictionary or LoRA adapter, drawn; state of AdamW or SGD after "
                "three steps on the block",
            ),
            ("site", STRING, "!output of the block that it acts on"),
            ("seed", INT, "!seed of the recorded gauge and of what is drawn"),
            ("forward_dtype", STRING, "!arithmetic of the forward pass"),
            (
                "transported_deviation",
                FLOAT,
                "!deviation of the outputs, as in equivalence, after transport (and, of a state, "
                "one more step)",
            ),
            (
                "permutation_deviation",
                FLOAT,
                "!the same when the permutation alone is applied to it",
            ),
            ("raw_deviation", FLOAT, "!the same when it is not moved"),
            (
                "permutation_error",
                FLOAT,
                "!squared error of the permutation alone over the squared length: |T_G a - T_P "
                "a|^2 / |a|^2; of a state, its averages of "
                "gradients",
            ),
            (
                "predicted_error",
                FLOAT,
                "!four times the share of that length on coordinates of negative sign; 2 on "
                "average over signs",
            ),
            (
                "raw_error",
                FLOAT,
                "!squared error when it is not moved over the squared length: |T_G a - a|^2 / "
                "|a|^2",
            ),
            (
                "transported",
                STRING,
                "!passed: transported within tolerance, beside a control that has power; failed; "
                "or no power: no control has any",
            ),
            *_CONTROLS,
        ),
        "group_boundary": schema(*_CHECKPOINT, *_EQUIVALENCE),
        "recovered_gauges": schema(*_CHECKPOINT, *_RECOVERED),
        "probe_budget": schema(*_CHECKPOINT, *_RECOVERED),
        "alignment_stability": schema(
            *_CHECKPOINT,
            ("other", STRING, "!model that is matched to it, with its revision"),
            _MATCH,
            _POOLED,
            ("width", INT, "!width of the stream", "coordinates"),
            ("sites", INT, "!residual sites", "sites"),
            *_ALIGNED,
            (
                "sign_certain",
                FLOAT,
                "!share of the matches whose common sign is certain, or that have none",
                "share",
            ),
        ),
        "alignment_cycles": schema(
            *_CHECKPOINT,
            (
                "cycle",
                STRING,
                "!three models, each matched with the next and the last with the first",
            ),
            _POOLED,
            ("sites", INT, "!residual sites", "sites"),
            *_HOLONOMY,
        ),
        "name_audit": schema(
            *_CHECKPOINT,
            ("claim", STRING, "!what names coordinates"),
            ("site", STRING, "!site id"),
            ("seeds", INT, "!recorded gauges", "seeds"),
            ("top", INT, "!coordinates named", "coordinates"),
            ("width", INT, "!width of the site", "coordinates"),
            ("chance", FLOAT, "!overlap of two random sets of that size", "share"),
            ("raw_overlap", FLOAT, "!mean share of the names that stay the same", "share"),
            ("raw_overlap_max", FLOAT, "!the largest over seeds", "share"),
            ("mapped_overlap", FLOAT, "!mean share that agree once the gauge is applied", "share"),
            ("mapped_overlap_min", FLOAT, "!the smallest over seeds", "share"),
            ("relative_deviation", FLOAT, "!largest deviation of the outputs"),
        ),
        "carried_artifacts": schema(
            *_CHECKPOINT,
            ("artifact", STRING, "!what is carried"),
            ("seeds", INT, "!recorded gauges", "seeds"),
            ("transported_deviation", FLOAT, "!largest deviation of the outputs after transport"),
            ("permutation_deviation", FLOAT, "!smallest deviation by the permutation alone"),
            ("raw_deviation", FLOAT, "!smallest deviation when not moved"),
            (
                "permutation_error",
                FLOAT,
                "!mean squared error of the permutation alone over the squared length",
            ),
            ("predicted_error", FLOAT, "!mean of the prediction"),
            ("raw_error", FLOAT, "!mean squared error when not moved over the squared length"),
            (
                "transported",
                STRING,
                "!passed where it did for every seed; failed where it did for one; else no power",
            ),
            *_CONTROLS,
        ),
    }
)
