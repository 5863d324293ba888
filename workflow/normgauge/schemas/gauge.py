"""Signed permutations: gauges as files, equivalence, recovery and audits."""

from __future__ import annotations

import pyarrow as pa

from normgauge.tables import BOOL, FLOAT, INT, INTS, STRING, Tables, schema

tables = Tables(
    {
        "gauge": schema(
            ("space", STRING, "!space or attention layer that moves"),
            ("kind", STRING, "!monomial, orthogonal or attention"),
            ("shape", INTS, "!sizes: coordinates; of an attention layer its groups, heads per group, query and value coordinates per head"),
            ("targets", INTS, "!where each coordinate goes; of an attention layer its group order, then the head order in each group"),
            ("factors", pa.list_(pa.float64()), "!what each source coordinate is multiplied by"),
            (
                "matrices",
                pa.list_(pa.float64()),
                "!row by row: the orthogonal matrix; of an attention layer its query, then its value maps",
            ),
        ),
        "equivalence": schema(
            ("group", STRING, "!what moves, and by which group"),
            ("admissible", BOOL, "!whether the gauge belongs to the model's group; else it is a control that must change the function"),
            ("seed", INT, "!seed of the random gauge"),
            ("forward_dtype", STRING, "!arithmetic of the forward pass"),
            ("max_abs_deviation", FLOAT, "!largest absolute difference over all outputs", "logit"),
            ("relative_deviation", FLOAT, "!the same over the largest absolute output of its kind"),
            ("passed", BOOL, "!deviation within tolerance when admissible, a thousand times beyond it when not"),
        ),
        "gauge_recovery": schema(
            ("site", STRING, "!site id"),
            ("seed", INT, "!seed of the recorded gauge"),
            ("tokens", INT, "!samples behind the correlation", "tokens"),
            ("method", STRING, "!what matched: row argmax, lapjvs or greedy, on |C| or on C"),
            ("permutation_accuracy", FLOAT, "!share of coordinates matched to their true target", "share"),
            ("sign_accuracy", FLOAT, "!share of coordinates given their true sign", "share"),
            ("min_margin", FLOAT, "!smallest margin: matched correlation minus the best rival in its row or column"),
            ("certified", BOOL, "!whether the matching is proven to be optimal"),
            ("seconds", FLOAT, "!time of the matching", "s"),
        ),
        "gauge_audit": schema(
            ("claim", STRING, "!what names coordinates: attribution, active neurons or difference of means"),
            ("site", STRING, "!site id"),
            ("seed", INT, "!seed of the recorded gauge"),
            ("top", INT, "!coordinates named", "coordinates"),
            ("width", INT, "!width of the site", "coordinates"),
            ("raw_overlap", FLOAT, "!share of the names that stay the same", "share"),
            ("mapped_overlap", FLOAT, "!share that agree once the gauge is applied to them", "share"),
            ("chance", FLOAT, "!overlap of two random sets of that size", "share"),
            ("relative_deviation", FLOAT, "!of the outputs, as in equivalence"),
        ),
    }
)
