"""Compare a paper's text with its list of numbers, or begin a list:
`python -m normgauge.published TEXT [LIST]`.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from normgauge.errors import InputError
from normgauge.published.numbers import FIELDS, compared, numbers_of, read_list


def main(arguments: Sequence[str] | None = None) -> int:
    """Without LIST: print the numbers as a list to be completed. With it: print what differs; the
    exit status is 1 where anything does.
    """
    parser = argparse.ArgumentParser(prog="python -m normgauge.published", description=__doc__)
    parser.add_argument("text", type=Path, help="a paper as text or Markdown")
    parser.add_argument("list", type=Path, nargs="?", help="config/published/numbers/STUDY.csv")
    options = parser.parse_args(arguments)
    try:
        numbers = list(numbers_of(options.text.read_text(encoding="utf-8")))
        if options.list is None:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(FIELDS)
            writer.writerows((n.line, n.section, n.words, n.written, "") for n in numbers)
            return 0
        faults = compared(numbers, read_list(options.list))
    except (InputError, OSError, UnicodeDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for fault in faults:
        print(fault)
    print(f"{len(numbers)} numbers in the text, {len(faults)} differ")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
