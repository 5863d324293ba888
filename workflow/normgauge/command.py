"""The command `normgauge`: one group of subcommands per study that works on files outside the workflow."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from normgauge.errors import InputError
from normgauge.gauge.command import add_commands


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: that of the subcommand, or 1 with one line on stderr for bad input or a place that cannot be read or written."""
    parser = argparse.ArgumentParser(prog="normgauge", description="Measures what the normalisation layers of transformers make knowable.")
    groups = parser.add_subparsers(required=True, metavar="group")
    text = "changes of coordinates that leave a model's function alone"
    add_commands(groups.add_parser("gauge", help=text, description=text))
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except (InputError, OSError) as error:  # OSError: what cannot be read or written
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
