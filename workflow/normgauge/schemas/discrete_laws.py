"""What signed permutations are on their own: assignment, the discrete part of a rotation, the least
example, and the rules by which tensors and artifacts move.
"""

from __future__ import annotations

import pyarrow as pa

from normgauge.tables import BOOL, FLOAT, INT, STRING, Tables, schema

UNALIGNED, PERMUTED, SIGNED = "unaligned", "permutation", "signed permutation"
"""How the two ends of the least example are aligned before they are averaged."""
CORRELATION, COVARIANCE = "correlation", "covariance"
"""What a coordinate of one model and one of the other score."""
DRAWN = "drawn at random"
"""In place of a pair of checkpoints: a rotation that belongs to none."""
WEIGHTS, ARTIFACTS = "weights", "artifacts"
"""What a rule is about: tensors of a model, or what people carry."""

_FLOATS = pa.list_(pa.float64())

tables = Tables(
    {
        "greedy_assignment": schema(
            ("activations", STRING, "!normal samples, or units of a checkpoint"),
            ("score", STRING, "!correlation, or covariance as the published match takes it"),
            ("width", INT, "!coordinates", "coordinates"),
            ("samples", INT, "!samples behind a score", "samples"),
            (
                "noise",
                FLOAT,
                "!standard deviation of what is added to each coordinate of the gauged copy, in "
                "units of the coordinate's own",
            ),
            ("seed", INT, "!seed of the recorded gauge, of the samples and of the noise"),
            (
                "exact_permutation",
                FLOAT,
                "!share of places that the exact assignment finds",
                "share",
            ),
            ("exact_sign", FLOAT, "!share of signs that it finds", "share"),
            (
                "greedy_permutation",
                FLOAT,
                "!share of places that the greedy match among each row's 200 best finds",
                "share",
            ),
            ("greedy_sign", FLOAT, "!share of signs that it finds", "share"),
            ("candidates", FLOAT, "!share of rows whose true place is among these 200", "share"),
            (
                "greedy_loses",
                FLOAT,
                "!share of the exact assignment's sum that it gives up",
                "share",
            ),
            ("method", STRING, "!how the exact assignment was found"),
        ),
        "scaffold": schema(
            ("first", STRING, "!checkpoint, model@revision, whose activations are turned"),
            ("second", STRING, "!checkpoint that they are turned to; or drawn at random"),
            ("site", STRING, "!site of the residual stream whose activations are compared"),
            ("tokens", INT, "!positions behind the rotation", "tokens"),
            ("width", INT, "!coordinates", "coordinates"),
            ("error", FLOAT, "!squared distance after the rotation, over the squared length"),
            ("discrete_error", FLOAT, "!the same after its discrete part alone"),
            ("distance", FLOAT, "!largest distance of a row of the rest from its unit vector"),
            ("distance_median", FLOAT, "!their median; certain below 0.765"),
            ("certain", FLOAT, "!share of rows with an entry above the root of one half", "share"),
            (
                "certified",
                BOOL,
                "!whether all rows have one: then the discrete part is the only one",
            ),
            ("places", FLOAT, "share of coordinates brought to their recorded place", "share"),
            ("signed_places", FLOAT, "the same, with their recorded sign", "share"),
            ("certain_places", FLOAT, "of the certain rows; null without a record or any", "share"),
            (
                "matched",
                FLOAT,
                "share that the match by correlations at this site sends there",
                "share",
            ),
            ("entries", _FLOATS, "!the entry of each row that is chosen, largest first"),
        ),
        "minimal_example": schema(
            ("way", STRING, "!how the gauged copy is aligned before it is mixed in"),
            ("share", FLOAT, "!share of the copy in the mixture", "share"),
            (
                "loss",
                FLOAT,
                "!mean squared error of the mixture over that of the input, whose two coordinates "
                "have equal variances",
            ),
            ("map", _FLOATS, "!the mixture's function: a matrix of two rows, row by row"),
        ),
        "transport_rules": schema(
            ("about", STRING, "!weights of a model, or artifacts"),
            ("owner", STRING, "!class of the model, or kind of artifact"),
            ("tensor", STRING, "!the tensor, with its block"),
            ("axis", STRING, "!what its axes read, write or number"),
            (
                "rule",
                STRING,
                "!how it moves: G of the residual stream, F of the units of its block",
            ),
            (
                "without_signs",
                FLOAT,
                "!squared error over the squared length of a tensor of entries ±1 moved by the "
                "permutation alone; half of the signs are negative, of a LayerNorm's stream all",
            ),
        ),
    }
)
