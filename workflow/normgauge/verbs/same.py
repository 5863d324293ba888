"""`normgauge same A B`: whether two checkpoints are one up to renumbering, reordering and signs."""

from __future__ import annotations

import argparse

from normgauge.verbs.arguments import MODEL, add_output, add_settings

HELP = (
    "whether A and B are one checkpoint up to changes of coordinates that keep the function, byte "
    "by byte or up to rounding; status 1 where not"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help=MODEL)
    parser.add_argument("b", metavar="B", help="another one")
    add_settings(parser)
    add_output(parser, folder=False)


def run(options: argparse.Namespace) -> int:
    from normgauge.anatomy import describe
    from normgauge.checkpoints.opening import open_checkpoint
    from normgauge.lineage.rounding import Given
    from normgauge.lineage.same import Verdict, same
    from normgauge.verbs.output import say, say_json
    from normgauge.verbs.places import model_folder
    from normgauge.verbs.words.comparing import same_summary

    with (
        model_folder(options.a, options.config) as first,
        model_folder(options.b, options.config) as second,
    ):
        a, b = (
            Given(describe(each.config), each.tensors, each.config)
            for each in (open_checkpoint(folder) for folder in (first, second))
        )
        found = same(a, b)
    if options.json:
        say_json(
            {
                "a": options.a,
                "b": options.b,
                "verdict": found.verdict,
                "sha256": [form and form.sha256 for form in (found.a, found.b)],
                "differences": [vars(each) for each in found.differences],
                "rounding": vars(found.rounding) if found.rounding else None,
                "settings": found.settings,
            }
        )
    else:
        say(same_summary(found))
    return int(found.verdict not in (Verdict.SAME, Verdict.ROUNDED))
