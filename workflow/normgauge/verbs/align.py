"""`normgauge align A B OUT`: B in A's coordinates, as a new checkpoint folder."""

from __future__ import annotations

import argparse

from normgauge.verbs.arguments import MODEL, add_output, add_settings, add_tokens

HELP = (
    "write B in A's coordinates: streams, feed-forward units, heads and their maps; status 1 "
    "where not all is certain"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help=MODEL)
    parser.add_argument("b", metavar="B", help=f"the one that is moved, unquantised: {MODEL}")
    parser.add_argument("output", metavar="OUT", help="a new folder")
    parser.add_argument(
        "--leave-behind",
        action="store_true",
        help="write OUT without files of B that would stay in old coordinates",
    )
    add_tokens(parser)
    add_settings(parser)
    add_output(parser, folder=False)


def run(options: argparse.Namespace) -> int:
    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.gauge.matching_report import record
    from normgauge.transport.aligning import align_folders
    from normgauge.transport.converted import as_safetensors
    from normgauge.verbs.output import say, say_json
    from normgauge.verbs.places import model_folder, require_place
    from normgauge.verbs.probes import pair_probes
    from normgauge.verbs.words.moving import align_summary

    with (
        model_folder(options.a, options.config) as first,
        model_folder(options.b, options.config) as stored,
        as_safetensors(stored, options.b, options.leave_behind) as second,
    ):
        require_place(options.output, first, stored)
        pair = open_checkpoint(first), open_checkpoint(second)
        inputs = pair_probes(options, (first, second), pair)
        found, done = align_folders(
            first, second, options.output, inputs.batches, options.leave_behind
        )
    if options.json:
        change = {
            "before": found.change.before,
            "after": found.change.after,
            "furthest": found.change.furthest,
        }
        document = {
            "certain": found.certain,
            "inputs": inputs.words,
            "weights_apart": change,
            "rounded_tensors": len(done.rounded),
        }
        files = {"moved": done.moved, "left_behind": done.left}
        say_json({**document, **record(found), **files, "folder": options.output})
    else:
        say([*align_summary(found, inputs, len(done.rounded), options.output), *done.words()])
    return 0 if found.certain else 1
