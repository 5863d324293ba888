"""The command `normgauge`: one verb per question about a model or a pair, outside the workflow."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from normgauge import __version__
from normgauge.errors import InputError, printable
from normgauge.verbs import (
    align,
    audit,
    canonical,
    carry,
    compare,
    directions,
    fingerprint,
    lineage,
    recover,
    same,
)

VERBS = {
    "fingerprint": fingerprint,
    "compare": compare,
    "align": align,
    "carry": carry,
    "audit": audit,
    "recover": recover,
    "directions": directions,
    "canonical": canonical,
    "same": same,
    "lineage": lineage,
}
GAUGE = "changes of coordinates that leave a model's function alone: random, apply, recover, check"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: that of the verb, 1 with one line on stderr for bad input or a place that
    cannot be read or written, 2 for wrong usage.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser(given)
    if not given:  # the verbs, not only that one is missing
        parser.exit(2, parser.format_help())
    options, unknown = parser.parse_known_args(given)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return options.run(options)
    except (InputError, OSError) as error:  # OSError: what cannot be read or written
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; nothing was left half-written", file=sys.stderr)
        return 130


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="normgauge",
        description="Measures what the normalisation layers of transformers make knowable.",
        epilog="MODEL is a checkpoint folder, a .gguf file, or a hub id. `normgauge VERB --help` "
        "explains a verb.",
    )
    parser.add_argument("--version", action="version", version=f"normgauge {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, module in VERBS.items():
        added = verbs.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(added)
        added.set_defaults(run=module.run, parser=added)
    gauge = verbs.add_parser("gauge", help=GAUGE, description=GAUGE)
    if given[:1] == ["gauge"]:  # its parser loads torch, which takes seconds
        from normgauge.verbs.gauge import add_commands

        add_commands(gauge)
    return parser


if __name__ == "__main__":
    sys.exit(main())
