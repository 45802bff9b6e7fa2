"""Has many untrusted dumps read by a few worker processes, and gathers what they answer.

A worker that dies on a file (it asked for too much memory or time) costs that file and is replaced.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankcall.diagnose.readers.dumps.rings import Ring, ring_from
from rankcall.diagnose.readers.dumps.shared import Shared
from rankcall.diagnose.readers.dumps.worker import HEADER

_MIB = 1 << 20
_SMALLEST_LIMIT = 256 * _MIB
_TIMES_SIZE = 16  # a 442 kB pickle takes 6 times as much as Python objects
LARGEST_FILE = 4 << 30
_CPU_SECONDS, _BYTES_A_CPU_SECOND = 4, _MIB // 4  # a hundred times what a dump of its size takes
_MANY_DEATHS = 20  # from then on every file of the folder gets a second
_AHEAD = 8  # requests that wait in a worker's pipe
_MOST_ASKED = 32 << 10  # bytes of them: a full pipe would block us while the worker waits for us to read
_MOST_WORKERS = 16
_DIED = "reading it took more memory or time than a dump of its size may"


@dataclass(frozen=True, slots=True)
class Source:
    """A file to read: where it is, how large, and when it was written (seconds since the epoch)."""

    path: Path
    size: int
    written: float


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that gave nothing, and why."""

    path: Path
    reason: str


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    asked: deque[int] = field(default_factory=deque)  # numbers of sources, in the order of the requests
    lengths: deque[int] = field(default_factory=deque)  # bytes of those requests, at most
    received: bytearray = field(default_factory=bytearray)
    calls: list[int] = field(default_factory=list)  # its numbers -> those of the shared tables
    stacks: list[int] = field(default_factory=lambda: [0])
    members: list[int] = field(default_factory=list)

    @property
    def waiting_bytes(self) -> int:
        return sum(self.lengths)


def read_all(
    sources: Sequence[Source], shared: Shared, *, workers: int | None = None,
    ends: bool = False, progress: Callable[[int], None] | None = None,
) -> Iterator[Ring | Unreadable]:  # fmt: skip
    """Read every source, in no particular order. `progress` hears how many are done. The workers are gone when the
    iterator is, however it ends."""
    todo: deque[int] = deque()
    done = 0
    for number, source in enumerate(sources):
        if source.size > LARGEST_FILE:
            yield Unreadable(source.path, f"it is larger than any dump ({source.size >> 30} GiB)")
            done += 1
        else:
            todo.append(number)
    pool = _Pool(sources, shared, todo, workers or _cores(), ends)
    try:
        for answer in pool.answers():
            done += 1
            if progress is not None:
                progress(done)
            yield answer
    finally:
        pool.stop()


def _cores() -> int:
    try:
        return min(len(os.sched_getaffinity(0)), _MOST_WORKERS)
    except AttributeError:
        return min(os.cpu_count() or 1, _MOST_WORKERS)


class _Pool:
    def __init__(self, sources: Sequence[Source], shared: Shared, todo: deque[int], most: int, ends: bool) -> None:
        self._sources, self._shared, self._todo, self._ends = sources, shared, todo, ends
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._deaths = 0
        for _ in range(min(most, len(todo))):
            self._start()

    def _start(self) -> None:
        script = Path(__file__).with_name("worker.py")
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        worker = _Worker(process)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)
        self._workers.append(worker)
        self._ask(worker)

    def _ask(self, worker: _Worker) -> None:
        """Keep the worker's pipe filled, so that it never waits for us."""
        lines = []
        while self._todo and len(worker.asked) < _AHEAD:
            source = self._sources[self._todo[0]]
            length = 6 * len(os.fsencode(source.path)) + 100
            if worker.asked and worker.waiting_bytes + length > _MOST_ASKED:
                break
            number = self._todo.popleft()
            worker.asked.append(number)
            worker.lengths.append(length)
            memory = max(_SMALLEST_LIMIT, _TIMES_SIZE * source.size)
            base = _CPU_SECONDS if self._deaths < _MANY_DEATHS else 1
            seconds = base + source.size // _BYTES_A_CPU_SECOND
            lines.append(json.dumps([os.fspath(source.path), memory, seconds, self._ends]))
        if lines:
            assert worker.process.stdin is not None
            try:
                worker.process.stdin.write(("\n".join(lines) + "\n").encode())
                worker.process.stdin.flush()
            except BrokenPipeError:
                pass  # it has died: its answers end, and `answers` sees to it

    def answers(self) -> Iterator[Ring | Unreadable]:
        while any(worker.asked for worker in self._workers):
            for key, _ in self._selector.select():
                worker: _Worker = key.data
                assert worker.process.stdout is not None
                piece = os.read(worker.process.stdout.fileno(), 1 << 20)
                if not piece:
                    yield from self._replace(worker)
                    continue
                worker.received += piece
                yield from self._complete(worker)

    def _replace(self, worker: _Worker) -> Iterator[Unreadable]:
        """It died: the file in hand is to blame, the others in its pipe are asked again elsewhere."""
        self._end(worker)
        self._deaths += 1
        if worker.asked:
            yield Unreadable(self._sources[worker.asked.popleft()].path, _DIED)
        self._todo.extendleft(reversed(worker.asked))
        if self._todo:
            self._start()

    def _complete(self, worker: _Worker) -> Iterator[Ring | Unreadable]:
        received, at = worker.received, 0
        while len(received) - at >= HEADER.size:
            length, data = HEADER.unpack_from(received, at)
            if len(received) - at < HEADER.size + length + data:
                break
            start = at + HEADER.size
            header = json.loads(received[start : start + length])
            columns = memoryview(received)[start + length : start + length + data]
            try:
                yield self._answer(worker, header, columns)
            finally:
                columns.release()
            at = start + length + data
        if at:
            del received[:at]
        self._ask(worker)

    def _answer(self, worker: _Worker, header: dict[str, Any], data: memoryview) -> Ring | Unreadable:
        source = self._sources[worker.asked.popleft()]
        worker.lengths.popleft()
        new = header["tables"]
        if not new:
            worker.calls, worker.stacks, worker.members = [], [0], []  # it has begun its tables anew
            return Unreadable(source.path, header["error"])
        worker.calls.extend(map(self._shared.call, new["calls"]))
        worker.stacks.extend(map(self._shared.stack, new["stacks"]))
        worker.members.extend(map(self._shared.member_list, new["members"]))
        if "error" in header:
            return Unreadable(source.path, header["error"])
        columns: dict[str, array[int]] = {}
        at = 0
        for name, code, count in header["columns"]:
            column = array(code)
            end = at + count * column.itemsize
            column.frombytes(data[at:end])
            columns[name], at = column, end
        columns["call"] = array("I", map(worker.calls.__getitem__, columns["call"]))
        if any(columns["stack"]):
            columns["stack"] = array("I", map(worker.stacks.__getitem__, columns["stack"]))
        config = [(name, about, worker.members[number]) for name, about, number in header["config"]]
        return ring_from(source.path, source.written, header, columns, config)

    def _end(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        self._selector.unregister(worker.process.stdout)
        self._workers.remove(worker)
        _close(worker.process)

    def stop(self) -> None:
        for worker in list(self._workers):
            self._end(worker)
        self._selector.close()


def _close(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except BrokenPipeError:
                pass
    process.wait()
