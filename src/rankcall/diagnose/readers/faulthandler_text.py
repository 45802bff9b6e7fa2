"""faulthandler's text -> frames by thread. The text may be cut off or mixed with anything else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rankcall.diagnose.readers.stack_sample import (
    LONGEST_TEXT,
    MOST_FRAMES,
    MOST_THREADS,
    StackSample,
    made_thread,
    with_main,
)
from rankcall.snapshot import Frame

_THREAD = re.compile(
    r"^\s*(Current thread|Thread) 0x([0-9a-fA-F]+)(?: \[([^\]]*)\])?(?: \[[^\]]*\])? \(most recent call first\):"
)
_FRAME = re.compile(r'^\s*File "(.*)", line (\d+|\?\?\?) in (.*)$')
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})")
_BEGINNING = re.compile(r"^\s*(Fatal Python error:|Timeout \(\d+:\d\d:\d\d)")


def threads_from_faulthandler(text: str) -> list[tuple[int, tuple[Frame, ...]]]:
    """(pthread id, frames innermost first) of each thread, in the order written; faulthandler puts the main thread
    last and the current one first. Lines that are no frames end nothing: other output may be mixed in."""
    threads: list[tuple[int, list[Frame]]] = []
    for line in text.splitlines():
        head = _THREAD.match(line)
        if head:
            if len(threads) >= MOST_THREADS:
                break
            threads.append((int(head.group(2)[-15:], 16), []))
            continue
        frame = _frame(line)
        if frame and threads and len(threads[-1][1]) < MOST_FRAMES:
            threads[-1][1].append(frame)
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


def samples_from_faulthandler(lines: Iterable[str]) -> list[StackSample]:
    """Each look at a process. Nothing says where the next process begins when several wrote to one file, but the main
    thread comes last, and ends in the script's `<module>`."""
    found: list[StackSample] = []
    look: dict[int, tuple[str, list[Frame]]] = {}
    frames: list[Frame] = []  # of the last thread
    for line in lines:
        head = _THREAD.match(line)
        if head is not None:
            tid = int(head.group(2)[-15:], 16)
            if _is_main(frames) or tid in look:
                found += _sample(look)
                look = {}
            frames = []
            if len(look) < MOST_THREADS:
                look[tid] = (head.group(3) or "", frames)
        elif _BEGINNING.match(line):
            found += _sample(look)
            look, frames = {}, []
        elif look and len(frames) < MOST_FRAMES:
            frame = _frame(line)
            if frame is not None:
                frames.append(frame)
    return found + _sample(look)


def _is_main(frames: Sequence[Frame]) -> bool:
    return bool(frames) and frames[-1].function == "<module>"


def _sample(look: Mapping[int, tuple[str, list[Frame]]]) -> list[StackSample]:
    threads = [made_thread(tid, frames, name=name) for tid, (name, frames) in look.items() if frames]
    if not threads:
        return []
    main = max((at for at, thread in enumerate(threads) if _is_main(thread.frames)), default=len(threads) - 1)
    return [StackSample(None, "", None, "", with_main(threads, main))]


def _frame(line: str) -> Frame | None:
    found = _FRAME.match(line)
    if found is None:
        return None
    number = int(found.group(2)) if found.group(2).isdecimal() and len(found.group(2)) < 10 else 0
    return Frame(_plain(found.group(1))[:LONGEST_TEXT], number, _plain(found.group(3))[:LONGEST_TEXT])


def _plain(text: str) -> str:
    """faulthandler writes what is not ASCII as \\xNN, \\uNNNN, \\UNNNNNNNN."""

    def character(match: re.Match[str]) -> str:
        number = int(next(group for group in match.groups() if group), 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else match.group()

    return _ESCAPE.sub(character, text) if "\\" in text else text
