"""`normgauge compare A B`: what changed between two checkpoints, where, and more than by chance."""

from __future__ import annotations

import argparse
from typing import Any

from normgauge.verbs.arguments import MODEL, add_output, add_settings, count, positive

HELP = (
    "what changed from A to B, where, and more than by chance; the gauge between them is taken out"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help=MODEL)
    parser.add_argument("b", metavar="B", help="another one of the same architecture")
    parser.add_argument(
        "--draws", type=positive, default=999, help="random changes per test, at least (999)"
    )
    parser.add_argument("--seed", type=count, default=0, help="of what is drawn (0)")
    add_settings(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    from normgauge.checkpoint_comparison.pairing import open_pair
    from normgauge.checkpoint_comparison.study import compare
    from normgauge.transport.origin import identity_of
    from normgauge.verbs.output import say, say_json, written
    from normgauge.verbs.places import check_output, model_folder
    from normgauge.verbs.words.comparing import compare_summary

    with (
        model_folder(options.a, options.config) as first,
        model_folder(options.b, options.config) as second,
    ):
        pair = open_pair((first, second))
        weights = (
            [identity_of(folder).sha256 for folder in (first, second)] if options.out else None
        )
        named = {name: getattr(options, name) for name in ("a", "b", "draws", "seed", "config")}
        record = {"verb": "compare", "weights": weights, **named}
        check_output(options.out, record, first, second)
        found = compare(pair, [], options.draws, options.seed)
    if options.out:
        _write(options.out, found, record)
    if options.json:
        kept = {kind: getattr(found, kind) for kind in ("inventory", "alignment", "nulls")}
        say_json({"a": options.a, "b": options.b, **kept, "decision": found.decision})
    else:
        say([*compare_summary(pair.anatomy, found), *written(options.out)])
    return 0


def _write(folder: str, found: Any, record: dict[str, Any]) -> None:
    from normgauge.checkpoint_comparison.decision import write_decision
    from normgauge.provenance import execution_environment
    from normgauge.schemas.checkpoint_comparison import tables
    from normgauge.verbs.places import output_folder

    metadata = {
        **execution_environment(),
        "a": record["a"],
        "b": record["b"],
        "seed": str(record["seed"]),
    }
    with output_folder(folder, record) as place:
        for kind in ("inventory", "alignment", "kernels", "nulls"):
            tables.write(
                place / f"{kind}.parquet",
                f"checkpoint_comparison_{kind}",
                getattr(found, kind),
                metadata,
            )
        write_decision(place / "decision.json", found.decision)
