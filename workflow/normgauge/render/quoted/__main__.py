"""Check the figures quoted in prose, or write them: `python -m normgauge.render.quoted [--update]
[--results FOLDER]`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from normgauge.errors import InputError
from normgauge.render.quoted.declaration import read_declaration
from normgauge.render.quoted.figures import Figures
from normgauge.render.quoted.prose import check_prose, update_prose

DECLARATION = "docs/quoted.yaml"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every figure is that of the tables, else 1 with a line on stderr for
    each fault.
    """
    parser = argparse.ArgumentParser(prog="python -m normgauge.render.quoted", description=__doc__)
    parser.add_argument(
        "--update", action="store_true", help="write the tables' figures into the text"
    )
    parser.add_argument("--root", type=Path, default=Path(), help="folder of the repository")
    parser.add_argument(
        "--results", type=Path, help="tables of another run: a folder in the place of results/"
    )
    options = parser.parse_args(arguments)
    try:
        declaration = read_declaration(options.root / DECLARATION)
        figures = Figures(declaration, options.root, options.results)
        if options.update:
            for line in update_prose(declaration, figures, options.root):
                print(line)
            figures.read = 0
        faults = check_prose(declaration, figures, options.root)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{figures.read} figures compared with their tables, {len(faults)} faults")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
