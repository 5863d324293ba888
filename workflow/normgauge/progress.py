"""Progress of long work, with an estimate of the time left, on stderr."""

from __future__ import annotations

import sys
import time


class Progress:
    """Counts steps towards `total` and prints at most one line every `interval` seconds.

    >>> progress = Progress(total=64, label="capture minilm-l6")
    >>> progress.step()
    """

    def __init__(self, total: int, label: str, interval: float = 10.0) -> None:
        self.total, self.label, self.interval = total, label, interval
        self.done = 0
        self.start = self.last = time.monotonic()

    def step(self, count: int = 1) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.last >= self.interval or self.done == self.total:
            self.last = now
            elapsed = now - self.start
            left = elapsed / self.done * (self.total - self.done)
            print(
                f"{self.label}: {self.done}/{self.total} ({100 * self.done / self.total:.0f} %), "
                f"{elapsed:.0f} s, about {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
