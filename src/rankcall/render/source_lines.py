"""The source lines around a place: from the texts a snapshot carries, else from the unchanged file itself."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from rankcall.findings import Where

# A training script is shorter; anything larger is no script, or not worth the wait.
LARGEST_SOURCE = 4 * 1024 * 1024


class SourceLines:
    """Looks up source texts by path; `texts` are those that came with the evidence."""

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self._texts = texts or {}
        self._read: dict[str, list[str]] = {}

    def around(self, where: Where, margin: int) -> list[tuple[int, str]]:
        """Numbered lines, `margin` before and after the place.

        Where the text cannot be had, or may no longer be what ran, it is the place's own line or nothing.
        """
        alone = [(where.line, where.code)] if where.code else []
        # A file on disk may have changed since: the line itself must say that it has not.
        if where.line < 1 or not (where.code or where.file in self._texts):
            return alone
        lines = self._lines(where.file)
        if where.line > len(lines):
            return alone
        if where.code and lines[where.line - 1].strip() != where.code.strip():
            return alone
        first, last = max(where.line - margin, 1), min(where.line + margin, len(lines))
        return [(number, lines[number - 1]) for number in range(first, last + 1)]

    def at(self, where: Where) -> str:
        """The place's own line, "" if it cannot be had."""
        found = self.around(where, 0)
        return found[0][1] if found else ""

    def _lines(self, path: str) -> list[str]:
        if path not in self._read:
            text = self._texts.get(path)
            # Only "\n" ends a line here, as it does for Python; str.splitlines would count form feeds too.
            self._read[path] = (_file_text(path) if text is None else text).split("\n")
        return self._read[path]


def _file_text(path: str) -> str:
    """The text of a regular file of normal size, else "": a report may name a pipe or a device."""
    if not path.endswith((".py", ".pyx", ".pyi")):
        return ""  # a report that came from elsewhere may name any file of ours
    try:
        file = Path(path)
        found = file.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_SOURCE:
            return ""
        return file.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return ""
