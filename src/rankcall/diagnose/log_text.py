"""Exceptions found in a process's last lines, for ranks that left no note (not recorded, or killed in C)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rankcall.snapshot import ExceptionNote, Frame

_PREFIX = re.compile(r"^\s*(\[(rank|default)\s*\d+\]:?\s?|\d+: )")
_FRAME = re.compile(r'^\s*File "([^"\n]{1,4096})", line (\d{1,9})(?:, in (.{1,200}))?')
_LAST = re.compile(r"^([A-Za-z_][\w.]{0,200}(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Abort)\w*)(?::\s?(.*))?$")
_FATAL = re.compile(r"^Fatal Python error: (.*)$")
_MOST_LINES = 2000


def _clean(lines: Sequence[str]) -> list[str]:
    return [_PREFIX.sub("", line.rstrip("\n")) for line in lines[-_MOST_LINES:]]


def exception_in_log(lines: Sequence[str]) -> ExceptionNote | None:
    """The last traceback printed, with its frames outermost first."""
    frames: list[Frame] = []
    found: ExceptionNote | None = None
    inside = False
    for line in _clean(lines):
        if line.startswith("Traceback (most recent call last)"):
            frames, inside = [], True
            continue
        if not inside:
            continue
        frame = frame_in(line)
        if frame is not None:
            frames.append(frame)
            continue
        last = _LAST.match(line)
        if last is not None:
            found = ExceptionNote(last.group(1), last.group(2) or "", tuple(frames))
            inside = False
    return found


def frame_in(line: str) -> Frame | None:
    """The stack frame that a line of a traceback or of faulthandler's output names."""
    match = _FRAME.match(line)
    if match is None:
        return None
    return Frame(match.group(1), int(match.group(2)), (match.group(3) or "").strip())


def fatal_stack(lines: Sequence[str]) -> tuple[Frame, ...]:
    """The stack, innermost first, that faulthandler printed when the process died: its current thread's."""
    stacks: list[tuple[bool, list[Frame]]] = []
    inside = fatal = False
    for line in _clean(lines):
        if _FATAL.match(line):
            stacks, inside, fatal = [], False, True
        elif fatal and "most recent call first" in line:
            stacks.append((line.startswith("Current thread"), []))
            inside = True
        elif inside:
            frame = frame_in(line)
            if frame is None:
                inside = False
            else:
                stacks[-1][1].append(frame)
    stacks.sort(key=lambda stack: not stack[0])
    return tuple(stacks[0][1]) if stacks else ()


def worker_frames(message: str) -> tuple[Frame, ...]:
    """The frames, outermost first, of the traceback that a DataLoader worker's error carries in its message."""
    return tuple(frame for frame in map(frame_in, message.splitlines()[:500]) if frame is not None)
