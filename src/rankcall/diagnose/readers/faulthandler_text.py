"""faulthandler's text -> frames by thread. The text may be cut off or mixed with anything else."""

from __future__ import annotations

import re

from rankcall.snapshot import Frame

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-fA-F]+)(?: \[([^\]]*)\])? \(most recent call first\):")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})")
_MOST_FRAMES = 200
_MOST_THREADS = 500


def threads_from_faulthandler(text: str) -> list[tuple[int, tuple[Frame, ...]]]:
    """(pthread id, frames innermost first) of each thread, in the order written; faulthandler puts the main thread
    last and the current one first. Lines that are no frames end nothing: other output may be mixed in."""
    threads: list[tuple[int, list[Frame]]] = []
    for line in text.splitlines():
        head = _THREAD.match(line)
        if head:
            if len(threads) >= _MOST_THREADS:
                break
            threads.append((int(head.group(1), 16), []))
            continue
        frame = _FRAME.match(line)
        if frame and threads and len(threads[-1][1]) < _MOST_FRAMES:
            number = int(frame.group(2)) if frame.group(2).isdigit() else 0
            threads[-1][1].append(Frame(_plain(frame.group(1)), number, _plain(frame.group(3))))
    return [(thread, tuple(frames)) for thread, frames in threads]


def fatal_stack(text: str) -> tuple[Frame, ...]:
    """The stack of the thread that crashed, innermost first, from the last "Fatal Python error" in the text; empty
    if there is none."""
    at = text.rfind("Fatal Python error:")
    if at < 0:
        return ()
    part = text[at:]
    current = part.find("Current thread 0x")
    threads = threads_from_faulthandler(part[current:]) if current >= 0 else []
    return threads[0][1] if threads else ()


def _plain(text: str) -> str:
    """faulthandler writes what is not ASCII as \\xNN, \\uNNNN, \\UNNNNNNNN."""

    def character(match: re.Match[str]) -> str:
        number = int(next(group for group in match.groups() if group), 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else match.group()

    return _ESCAPE.sub(character, text) if "\\" in text else text
