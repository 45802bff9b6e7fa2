"""The last lines of a rank's log files. They may hold anything, and something else may lie under their name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_BYTES = 16_384
_LINES = 40
_LONGEST = 500


def log_tail(paths: Sequence[Path]) -> tuple[str, ...]:
    """The last lines of each file, in the files' order: stderr's last, as the launcher names them."""
    lines: list[str] = []
    for path in paths:
        try:
            if not path.is_file():  # opening a FIFO would wait for its writer
                continue
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _BYTES))
                text = file.read(_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        lines += [line[:_LONGEST] for line in text.splitlines()[-_LINES:]]
    return tuple(lines)
