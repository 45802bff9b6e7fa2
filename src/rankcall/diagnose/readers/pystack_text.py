"""`pystack remote` and `pystack core` -> the stacks of each process, native frames included. Untrusted text."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from rankcall.diagnose.readers.stack_sample import (
    LONGEST_TEXT,
    MOST_THREADS,
    StackSample,
    StackThread,
    made_thread,
    native_frame,
    with_main,
)
from rankcall.snapshot import Frame

_MOST_RAW_FRAMES = 2_000

_THREAD = re.compile(
    r"\s*Traceback for thread (\d{1,10})(?: \(([^()]{0,100})\))? ?(?:\[([^\]]{0,100})\] ?)?\(most recent call last\):"
)
_EMPTY = re.compile(r"\s*The frame stack for thread (\d{1,10}) is empty")
_FRAME = re.compile(r'\s*\((Python|C)\) File "(.*)", line (\d{1,9}), in (.*)$')
_LIBRARY = re.compile(r"(?: \(inlined\))? \(([^()]{1,400})\)$")
_CORE = re.compile(r"\s*Core file information:")
_CORE_PID = re.compile(r"\s*pid: (\d{1,10}) ppid: (\d{1,10})")
_CORE_COMMAND = re.compile(r"\s*executable: .{0,200}? arguments: (.*)$")


def samples_from_pystack(lines: Iterable[str]) -> list[StackSample]:
    """Each process. `pystack remote` names none: a thread id that comes again, or a core file's header, begins the next
    one."""
    found: list[StackSample] = []
    process = _Process()
    for line in lines:
        if _CORE.match(line):
            found += process.sample()
            process = _Process()
        head = _THREAD.match(line)
        if head is not None and process.knows(int(head.group(1))):
            found += process.sample()
            process = _Process()
        process.read(line, head)
    return found + process.sample()


class _Process:
    def __init__(self) -> None:
        self._pid: int | None = None
        self._parent: int | None = None
        self._command = ""
        self._threads: list[StackThread] = []
        self._known: set[int] = set()
        self._scripts: list[int] = []  # indexes of threads that began in a script's `<module>`
        self._head: re.Match[str] | None = None
        self._frames: deque[Frame] = deque(maxlen=_MOST_RAW_FRAMES)  # outermost first: the oldest give way
        self._outermost: Frame | None = None

    def knows(self, tid: int) -> bool:
        return tid in self._known

    def read(self, line: str, head: re.Match[str] | None) -> None:
        if head is not None or _EMPTY.match(line):
            self._end_thread()
            self._head = head
            if head is not None and len(self._known) < MOST_THREADS:
                self._known.add(int(head.group(1)))
        elif self._head is not None:
            self._read_frame(line)
        elif core := _CORE_PID.match(line):
            self._pid, self._parent = int(core.group(1)), int(core.group(2))
        elif command := _CORE_COMMAND.match(line):
            self._command = command.group(1).strip()[: LONGEST_TEXT * 4]

    def _read_frame(self, line: str) -> None:
        found = _FRAME.match(line)
        if found is None:
            return
        language, file, number, function = found.groups()
        if language == "Python":
            frame = Frame(file[:LONGEST_TEXT], int(number), function.strip()[:LONGEST_TEXT])
            self._outermost = self._outermost or frame
        else:
            library = _LIBRARY.search(function)
            place = file if file != "???" or library is None else library.group(1)
            name = function[: library.start()] if library is not None else function
            frame = native_frame(name, place, int(number))
        self._frames.append(frame)

    def _end_thread(self) -> None:
        if self._head is not None and self._frames and len(self._threads) < MOST_THREADS:
            tid, name, status = self._head.groups()
            if self._outermost is not None and self._outermost.function == "<module>":
                self._scripts.append(len(self._threads))
            self._threads.append(
                made_thread(int(tid), tuple(reversed(self._frames)), name=name or "", state=_state(status or ""))
            )
        self._head, self._outermost = None, None
        self._frames.clear()

    def sample(self) -> list[StackSample]:
        self._end_thread()
        if not self._threads:
            return []
        tids = [thread.tid for thread in self._threads]
        if self._pid in tids:
            main = tids.index(self._pid)
        else:
            main = min(self._scripts or range(len(tids)), key=tids.__getitem__)
        # On Linux the main thread's id is the process's.
        pid = self._pid if self._pid is not None else tids[main]
        return [StackSample(None, "", pid, self._command, with_main(self._threads, main), parent=self._parent)]


def _state(status: str) -> str:
    """The words between the brackets, as py-spy would say them where it can."""
    if "Has the GIL" in status:
        return "active+gil"
    return "waiting for the GIL" if "Waiting for the GIL" in status else status.lower()
