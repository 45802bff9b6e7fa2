"""A line on a terminal that says how far long work is. Nothing where standard error is no terminal."""

from __future__ import annotations

import sys
import time

_FIRST_AFTER_S = 1.0  # quick work needs no line
_EVERY_S = 0.1


class Progress:
    """Call it with (done, all); `clear` takes the line away."""

    def __init__(self, what: str = "reading") -> None:
        self._what = what
        self._began = self._last = time.monotonic()
        self._shown = False
        self._wanted = sys.stderr.isatty()

    def __call__(self, done: int, every: int) -> None:
        now = time.monotonic()
        if not self._wanted or now - self._began < _FIRST_AFTER_S or (now - self._last < _EVERY_S and done < every):
            return
        self._last, self._shown = now, True
        sys.stderr.write(f"\r{self._what} {done} of {every}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away again."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False
