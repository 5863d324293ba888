"""Trajectories: links of a run, transport, trust, cycles, merging and resumed training."""

from __future__ import annotations

import pyarrow as pa

from normgauge.schemas.signed_permutation import tables as alignment
from normgauge.tables import BOOL, FLOAT, INT, INTS, STRING, Tables, schema

LAST_BLOCK = "last block's output"
"""In place of a site id: the stream behind its last block alone."""
SCRAMBLED, TRAINED_APART = "scrambled", "trained apart"
"""Where the second of a merged pair has its coordinates from."""
UNALIGNED, PERMUTED, PLACED, SIGNED = (
    "unaligned",
    "permutation, by C",
    "places of |C|, without signs",
    "signed permutation, by |C|",
)
"""How the second of a merged pair is taken into the coordinates of the first."""
RECORDED = "recorded gauges undone"
"""Fine-tunes as they would be had each not started in coordinates of its own."""
ONE_BASE = "fine-tuned from one base"
MOVED, PLACED_STATE, NOT_MOVED = "signed permutation", "permutation alone", "not moved"
"""How an optimizer's state follows its model."""
TRANSPORT, ENDPOINT, HELD_OUT = "transport", "endpoint", "endpoint, held-out probes"
"""How coordinates are followed: composed local matches, or one match of the ends."""

_FLOATS = pa.list_(pa.float64())

_TUNED = (
    ("model", STRING, "!entry of the model table whose runs these are"),
    ("learning_rate", FLOAT, "!largest learning rate"),
)
_SCOPE = (
    ("space", STRING, "!space that is matched"),
    ("sites", STRING, "!all sites of it, or the last block's output alone"),
    ("tokens", INT, "!samples behind each match", "tokens"),
)
_FOUND = (
    ("links", INT, "!matches that are composed", "links"),
    ("accuracy", FLOAT, "!share of coordinates brought to their recorded place", "share"),
    ("signed_accuracy", FLOAT, "!the same, with their recorded sign", "share"),
    ("certain", FLOAT, "!share of coordinates that meet certain matches alone", "share"),
    (
        "certain_accuracy",
        FLOAT,
        "share of these at their recorded place with their sign; null when there are none",
        "share",
    ),
    (
        "predicted",
        FLOAT,
        "!signed accuracy as the rule of trust expects it from the leads of the matches",
        "share",
    ),
)

tables = Tables(
    {
        "trajectory_links": schema(
            ("space", STRING, "!space that is matched"),
            ("sites", STRING, "!all sites of it, or the last block's output alone"),
            ("tokens", INT, "!samples behind the match", "tokens"),
            ("stride", INT, "!steps between the two; 0 from the base to step 0", "steps"),
            ("start", INT, "!step that is matched; -1 the base before the recorded gauge"),
            ("stop", INT, "!step that it is matched with"),
            ("targets", INTS, "!where each coordinate goes"),
            ("factors", _FLOATS, "!its sign"),
            ("certain", INTS, "!1 where the match is certain"),
            (
                "lead",
                _FLOATS,
                "!by how many standard errors the match is ahead of its best rival, of those in "
                "its row and its column the nearer",
            ),
        ),
        "merge_barriers": schema(
            ("first", STRING, "!checkpoint, model@revision, whose coordinates are kept"),
            ("second", STRING, "!checkpoint that is taken into them"),
            ("kind", STRING, "!scrambled by a recorded gauge, or trained apart"),
            ("seed", INT, "seed of the recorded gauge; null where the two were trained apart"),
            ("moved", STRING, "!spaces that are scrambled or matched"),
            (
                "way",
                STRING,
                "!how the second is aligned: not at all, by the permutation that maximises C, by "
                "the places of |C| with all signs plus, or by places and signs of |C|; as far as "
                "the group of a space has signs",
            ),
            ("sequences", INT, "!sequences behind a loss", "sequences"),
            (
                "barrier",
                FLOAT,
                "!largest rise of the loss above the chord between the ends, at eleven points",
                "nat/token",
            ),
            ("barrier_error", FLOAT, "its standard error over sequences", "nat/token"),
            (
                "floor",
                FLOAT,
                "!how far the ends' losses differ between ways, which are one function: rounding",
                "nat/token",
            ),
            ("peak_at", FLOAT, "!share of the second checkpoint at the peak", "share"),
            (
                "places_right",
                FLOAT,
                "share of coordinates whose recorded place was found; null without a record",
                "share",
            ),
            ("negative", FLOAT, "!share of negative signs in the signed permutation", "share"),
            ("first_loss", FLOAT, "!loss of the first checkpoint", "nat/token"),
            ("second_loss", FLOAT, "!loss of the second", "nat/token"),
            ("losses", _FLOATS, "!losses at the eleven points", "nat/token"),
        ),
        "aligned_merges": schema(
            ("first", STRING, "!checkpoint, model@revision, whose coordinates are kept"),
            ("second", STRING, "!checkpoint that `normgauge align` writes in them"),
            ("kind", STRING, "!fine-tuned from one base, or trained apart"),
            (
                "way",
                STRING,
                "!how the second is aligned before the two are averaged: not at all, by the "
                "permutation of streams and units that maximises C, by what align finds with all "
                "signs plus, by what it writes, or by the recorded gauges that the two have "
                "started with",
            ),
            ("text", STRING, "!corpus that the losses are taken on, held out from fine-tuning"),
            ("sequences", INT, "!sequences behind a loss", "sequences"),
            ("first_loss", FLOAT, "!loss of the first checkpoint", "nat/token"),
            ("second_loss", FLOAT, "!loss of the second", "nat/token"),
            ("average_loss", FLOAT, "!loss of the average of their weights", "nat/token"),
            ("rise", FLOAT, "!loss of the average minus the mean of the two", "nat/token"),
            ("rise_error", FLOAT, "!its standard error over sequences", "nat/token"),
            (
                "apart",
                FLOAT,
                "!distance of the weights of the two over the length of the first's",
            ),
            (
                "certain",
                FLOAT,
                "!share of coordinates, units, heads and maps that align calls certain",
                "share",
            ),
        ),
        "resumed_training": schema(
            ("model", STRING, "!model id"),
            ("revision", STRING, "!revision that the first steps start from"),
            ("optimizer", STRING, "!adamw or sgd (with momentum)"),
            ("seed", INT, "!seed of the recorded gauge"),
            ("state", STRING, "!how the optimizer's state follows its model"),
            ("warm_up", INT, "!steps before the gauge", "steps"),
            ("resumed", INT, "!steps after it", "steps"),
            (
                "relative_error",
                FLOAT,
                "!squared error of held-out logits over their squared length, against the run that "
                "was not moved",
            ),
            ("loss", FLOAT, "!held-out loss of the resumed run", "nat/token"),
            ("reference_loss", FLOAT, "!of the run that was not moved", "nat/token"),
        ),
        "trajectory_transport": schema(
            *_TUNED,
            ("steps", INT, "!steps of the run", "steps"),
            ("run", STRING, "!run of the entry"),
            ("corpus", STRING, "!text that it is trained on"),
            ("seed", INT, "!seed of its batches"),
            ("fitted", BOOL, "!whether the rule of trust was fitted on this run"),
            *_SCOPE,
            ("way", STRING, "!transport, endpoint, or endpoint on probes that share no text"),
            ("stride", INT, "steps between two matches of a chain; null of one match", "steps"),
            *_FOUND,
        ),
        "trajectory_pairs": schema(
            *_TUNED,
            ("steps", INT, "!steps of each run", "steps"),
            ("pair", STRING, "!cross-seed or cross-text: what the two runs differ in"),
            ("first", STRING, "!run that is matched"),
            ("second", STRING, "!run that it is matched with"),
            *_SCOPE,
            (
                "way",
                STRING,
                "!one match of the ends, or by way of the base: two matches, two chains of the "
                "smallest stride, or one of each",
            ),
            *_FOUND,
        ),
        "trajectory_cycles": schema(
            *_TUNED,
            ("pair", STRING, "!what the runs differ in"),
            ("cycle", STRING, "!checkpoints gone through: the base by chains, ends by one match"),
            *_SCOPE,
            ("links", INT, "!matches that are composed", "links"),
            ("width", INT, "!coordinates", "coordinates"),
            ("moved", FLOAT, "!share of coordinates that are not brought back", "share"),
            ("certain", FLOAT, "!share that meet certain matches alone", "share"),
            ("certain_moved", FLOAT, "share of these that are not brought back", "share"),
            ("moving", INTS, "!coordinates that are not brought back"),
            ("moving_certain", INTS, "!those of them that meet certain matches alone"),
        ),
        "transport_trust": schema(
            ("judged", STRING, "!chains of the runs that the rule was fitted on, or of others"),
            ("intercept", FLOAT, "!log-odds of a right match without any lead"),
            ("slope", FLOAT, "!log-odds by asinh of its lead in standard errors"),
            ("level", FLOAT, "!log-odds by asinh of the median lead of its link"),
            ("matches", INT, "!matches of single coordinates that it was fitted on", "matches"),
            ("chains", INT, "!chains that it is judged on", "chains"),
            ("error", FLOAT, "!mean distance of predicted from found accuracy", "share"),
            (
                "error_of_mean",
                FLOAT,
                "!the same of the fitted runs' mean accuracy as the only prediction",
                "share",
            ),
            ("trusted", INT, "!chains whose predicted accuracy is 90 % or more", "chains"),
            ("trusted_accuracy_min", FLOAT, "smallest accuracy among these", "share"),
            ("trusted_accuracy", FLOAT, "their mean accuracy", "share"),
            ("untrusted_accuracy", FLOAT, "mean accuracy of the others", "share"),
            ("broken", INT, "!chains with an accuracy below 90 %", "chains"),
            ("broken_trusted", INT, "!of these the trusted ones", "chains"),
            ("whole_untrusted", INT, "!chains of 90 % or more that are not trusted", "chains"),
        ),
        "endpoint_budget": schema(
            *_TUNED,
            ("steps", INT, "!steps of the run", "steps"),
            ("run", STRING, "!run of the entry"),
            *_SCOPE,
            ("accuracy", FLOAT, "!share matched to their recorded place, in one match", "share"),
            ("sign_accuracy", FLOAT, "!share given their recorded sign", "share"),
            ("certain", FLOAT, "!share that the match counts as certain", "share"),
        ),
        "natural_alignment": schema(
            ("model", STRING, "!model id"),
            ("revision", STRING, "!seed whose coordinates are kept"),
            ("norm_kind", STRING, "!norm on the residual stream"),
            *tuple(
                (
                    field.name,
                    field.type,
                    f"{'' if field.nullable else '!'}{field.metadata[b'description'].decode()}",
                )
                for field in alignment.schemas["gauge_alignment"]
            ),
        ),
    }
)
