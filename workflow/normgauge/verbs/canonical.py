"""`normgauge canonical MODEL [OUT]`: the one form of all copies of a checkpoint under discrete
gauges.
"""

from __future__ import annotations

import argparse

from normgauge.verbs.arguments import MODEL, add_output, add_settings

HELP = (
    "the hash of a checkpoint that no renumbering, reordering or change of signs alters, and, "
    "with OUT, the checkpoint in that form"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument(
        "output",
        metavar="OUT",
        nargs="?",
        help="a new folder for the form; OUT.gauge.parquet beside it holds the gauge that leads "
        "there",
    )
    parser.add_argument(
        "--leave-behind",
        action="store_true",
        help="write OUT without files of MODEL that would stay in old coordinates",
    )
    add_settings(parser)
    add_output(parser, folder=False)


def run(options: argparse.Namespace) -> int:
    from normgauge.anatomy import describe
    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.lineage.canonical import canonical
    from normgauge.lineage.folders import gauge_file, write_canonical
    from normgauge.verbs.output import say, say_json
    from normgauge.verbs.places import model_folder, require_place
    from normgauge.verbs.words.comparing import canonical_summary

    left: list[str] = []
    with model_folder(options.model, options.config) as folder:
        if options.output:
            require_place(options.output, folder)
            require_place(str(gauge_file(options.output)), folder)
        checkpoint = open_checkpoint(folder)
        anatomy = describe(checkpoint.config)
        form = canonical(anatomy, checkpoint.tensors)
        if options.output:
            done = write_canonical(folder, options.output, form, options.leave_behind)
            left = done.words()
    if options.json:
        document = {"sha256": form.sha256, "proven": form.proven, "forms_compared": form.leaves}
        place = {"folder": options.output} if options.output else {}
        say_json(
            {"model": options.model, "architecture": anatomy.architecture, **document, **place}
        )
    else:
        say([*canonical_summary(anatomy, form, options.output), *left])
    return 0
