"""The modules that run by themselves (`python -m`), at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable

from normgauge.errors import InputError


def run(main: Callable[[], None]) -> None:
    """Run `main`; an InputError becomes one line `error: ...` on stderr and exit status 1."""
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
