"""Text that came from a job, made safe to show: nothing in it can move the cursor, change colours, turn the
reading direction or flood the screen. Short forms of numbers, paths and ranks live here too."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import PurePath

# Longer texts are cut: a verdict must fit on a screen whatever a log line or an exception holds.
LONGEST_LINE = 400
LONGEST_TEXT = 2_000

_TABULATOR = "    "
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Hostile text piles letters that take no room on one another; a few of them are normal in many scripts.
_MOST_MARKS = 4


def line(text: str, limit: int = LONGEST_LINE) -> str:
    """`text` as one safe line of at most `limit` characters; line ends become the two characters `\\n`."""
    return _safe(_cut(text, limit).replace("\r\n", "\n"), keep_line_ends=False)


def paragraph(text: str, limit: int = LONGEST_TEXT) -> str:
    """Like `line`, but line ends stay."""
    return _safe(_cut(text, limit).replace("\r\n", "\n"), keep_line_ends=True)


def code(text: str, limit: int = LONGEST_LINE) -> str:
    """A line of source: safe, tabulators as four spaces, no space at its end, the indentation kept."""
    return _safe(_cut(text, limit).rstrip().replace("\t", _TABULATOR), keep_line_ends=False)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _safe(text: str, *, keep_line_ends: bool) -> str:
    if text.isascii() and text.isprintable():
        return text
    safe: list[str] = []
    marks = 0
    for character in text:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if keep_line_ends and character == "\n":
            safe.append(character)
        elif category in _UNSAFE_CATEGORIES or marks > _MOST_MARKS:
            safe.append(_spelled(character))
        else:
            safe.append(character)
    return "".join(safe)


def _spelled(character: str) -> str:
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    if short is not None:
        return short
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def ranges(numbers: Iterable[int], most_runs: int = 5) -> str:
    """Numbers as runs: `0-36, 38-63`. After `most_runs` the rest is counted: `0, 2, 4, 6, 8 and 27 more`."""
    ordered = sorted(set(numbers))
    runs: list[tuple[int, int]] = []
    for number in ordered:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:most_runs])
    left = sum(last - first + 1 for first, last in runs[most_runs:])
    return f"{shown} and {left} more" if left else shown


def duration(seconds: float) -> str:
    """Seconds as people say them: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(whole // 60, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def short_path(path: str, base: str) -> str:
    """`path` as seen from the folder `base` when it lies below it, else as it is."""
    prefix = base.rstrip("/") + "/"
    return path[len(prefix) :] if base and path.startswith(prefix) else path


def package_path(path: str) -> str:
    """A library's file without the folder it is installed in: `torch/distributed/distributed_c10d.py`."""
    parts = PurePath(path).parts
    for index in range(len(parts) - 1, -1, -1):
        if parts[index] in ("site-packages", "dist-packages"):
            return "/".join(parts[index + 1 :]) or path
        if parts[index].startswith("python3.") and index > 0 and parts[index - 1].startswith("lib"):
            return "/".join(parts[index + 1 :]) or path
    return path


def is_library(path: str) -> bool:
    """True for what is not the user's own: installed packages, the standard library, generated code."""
    return path.startswith("<") or package_path(path) != path
