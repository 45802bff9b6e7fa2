"""Which lines of a stack are the user's own, and how a stack frame becomes a place in the report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from rankcall.findings import Where
from rankcall.snapshot import Frame

# Paths of what is installed: torch, other packages, the standard library, frozen and generated code.
_INSTALLED = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python\d[^/]*/|^<|/torch/(distributed|nn|utils|optim|_dynamo|autograd)/"
    r"|/torchrun$|/bin/[^/]+$|/rankcall/(record|launch|watch)/"
)


# Texts in quotes, or the remark after the code.
_REMARK = re.compile(r"""\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|(?P<remark>#.*)""")


def is_user_file(file: str, sources: Mapping[str, str]) -> bool:
    """True for a file that the user wrote: one whose text was kept, or one that is not installed."""
    if file in sources:
        return True
    return bool(file) and _INSTALLED.search(file) is None


def user_frames(stack: Iterable[Frame], sources: Mapping[str, str]) -> tuple[Frame, ...]:
    """The user's frames of a stack, in its order."""
    return tuple(frame for frame in stack if is_user_file(frame.file, sources))


def innermost_user(stack: Iterable[Frame], sources: Mapping[str, str]) -> Frame | None:
    """The user's line nearest to what happens; `stack` is innermost first."""
    return next((frame for frame in stack if is_user_file(frame.file, sources)), None)


def code_of(frame: Frame | None, sources: Mapping[str, str]) -> str:
    """The code of that line, without indentation and remarks; empty when it is not known."""
    return without_remark(line_of(frame, sources))


def line_of(frame: Frame | None, sources: Mapping[str, str]) -> str:
    """The text of that line, without indentation; empty when it is not known."""
    if frame is None or frame.line <= 0:
        return ""
    text = sources.get(frame.file)
    if text is None:
        return ""
    # Only Python's own line ends: splitlines would also split at form feeds and shift the numbers.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[frame.line - 1].strip() if frame.line <= len(lines) else ""


def without_remark(code: str) -> str:
    """A line of code without the comment at its end. A `#` in a text is none; a line that is all comment stays."""
    for match in _REMARK.finditer(code):
        if match.group("remark"):
            return code[: match.start()].rstrip() or code
    return code


def where(frame: Frame | None, sources: Mapping[str, str]) -> Where | None:
    """The place as the report holds it."""
    if frame is None or not frame.file:
        return None
    return Where(file=frame.file, line=frame.line, function=frame.function, code=line_of(frame, sources))


def same_place(one: Frame | None, other: Frame | None) -> bool:
    """The same line of the same file; two unknown places are not the same."""
    return one is not None and other is not None and one.file == other.file and one.line == other.line
