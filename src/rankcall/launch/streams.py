"""Takes what the ranks print: each stream is a pipe that one thread empties into a raw file of the run folder.

A pipe, and not the file itself, because a rank that prints to a full disk would die of it. The thread never waits
for the console; `console` reads the text back from the files at its own pace. Where a file cannot be written the
text goes to the console through a small memory, and is counted as not saved.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

StreamName = Literal["stdout", "stderr"]

CHUNK = 1 << 18
# Room for bursts: a rank does not wait for this thread before it has printed so much at once.
PIPE_SIZE = 1 << 18
# Text of one stream kept in memory when its file cannot be written; then the rank waits for the console.
MOST_IN_MEMORY = 1 << 20
# One look collects what was printed in this time (seconds): a wake-up per line would cost more than the line.
GATHER = 0.004
# How long after a failed write the file is tried again (seconds).
RETRY = 5.0
# How long a left-over process that never stops printing can delay the end (seconds).
LAST_ROUND = 2.0


class Stream:
    """stdout or stderr of one rank. Filled by `Capture`, emptied by the console."""

    def __init__(self, name: StreamName, raw: Path, to_console: bool) -> None:
        self.name: StreamName = name
        self.raw = raw
        self.to_console = to_console
        self.closed = False  # no writer is left and all was read
        self.unsaved = 0  # bytes that are not in the file
        self._gap = 0  # those of them that no mark in the file speaks of yet
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        with contextlib.suppress(OSError, AttributeError):  # a limit of the system, or not Linux
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        self._file = -1
        self._saved = 0
        self._retry_at = 0.0
        self._segments: deque[tuple[int, int] | bytes] = deque()
        self._in_memory = 0
        self._lock = threading.Lock()
        self._open_file()

    @property
    def crowded(self) -> bool:
        """True while the console is too far behind to take more into memory."""
        return self._in_memory >= MOST_IN_MEMORY

    @property
    def has_text(self) -> bool:
        return bool(self._segments)

    def close_writer(self) -> None:
        """Give up our own end, once the rank has its own."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def receive(self) -> int:
        """Move what the pipe holds now, at most CHUNK bytes; the number of bytes. 0: nothing there, or the end."""
        try:
            data = os.read(self.reader, CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return 0
        self._keep(data)
        return len(data)

    def take(self) -> bytes:
        """The next piece of text, at most CHUNK bytes; empty if there is none."""
        with self._lock:
            if not self._segments:
                return b""
            first = self._segments.popleft()
            if isinstance(first, bytes):
                self._in_memory -= len(first)
                return first
            start, end = first
            stop = min(end, start + CHUNK)
            if stop < end:
                self._segments.appendleft((stop, end))
        return self._read(start, stop)

    def release(self) -> None:
        """Close everything. Text that was not taken is still in the file."""
        self.close_writer()
        self.closed = True
        for number in (self.reader, self._file):
            if number >= 0:
                os.close(number)
        self.reader = self._file = -1

    def _open_file(self) -> None:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self.raw, flags, 0o600)
        except OSError:
            self._retry_at = time.monotonic() + RETRY

    def _keep(self, data: bytes) -> None:
        try:
            written = self._write(data)
        except Exception:  # the text has left the pipe: it must not be lost to a fault of ours
            written = 0
        rest = data[written:]
        with self._lock:
            if written:
                start, end = self._saved, self._saved + written
                self._saved = end
                last = self._segments[-1] if self._segments else None
                if isinstance(last, tuple) and last[1] == start:
                    self._segments[-1] = (last[0], end)
                else:
                    self._segments.append((start, end))
            if rest:
                self.unsaved += len(rest)
                self._gap += len(rest)
                if self.to_console:
                    self._segments.append(rest)
                    self._in_memory += len(rest)

    def _write(self, data: bytes) -> int:
        """Write to the file; how many bytes it took. A full disk is no error here."""
        if self._retry_at:
            if time.monotonic() < self._retry_at:
                return 0
            self._retry_at = 0.0
            if self._file < 0:
                self._open_file()
            if self._file < 0 or not self._mark_gap():
                return 0
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            self._retry_at = time.monotonic() + RETRY
        return written

    def _mark_gap(self) -> bool:
        """Say in the file how much is missing at this place."""
        if not self._gap:
            return True
        mark = f"\n[rankcall: {self._gap} bytes could not be saved here]\n".encode()
        try:
            self._saved += os.write(self._file, mark)
        except OSError:
            self._retry_at = time.monotonic() + RETRY
            return False
        self._gap = 0
        return True

    def _read(self, start: int, stop: int) -> bytes:
        pieces = []
        while start < stop:
            try:
                data = os.pread(self._file, stop - start, start)
            except OSError:
                data = b""
            if not data:
                break  # somebody cut our file short; the text is lost to the console
            pieces.append(data)
            start += len(data)
        return b"".join(pieces)


class FileStream:
    """A stream that its rank writes to the raw file by itself: torch opens it as a file, and seeks in it.

    Only `--run-path` needs this. A full disk is then the rank's own trouble.
    """

    writer = -1
    reader = -1
    unsaved = 0
    crowded = False

    def __init__(self, name: StreamName, raw: Path, to_console: bool) -> None:
        self.name: StreamName = name
        self.raw = raw
        self.to_console = to_console
        self.closed = False
        self._file = -1
        self._taken = 0

    @property
    def has_text(self) -> bool:
        try:
            return self.raw.stat().st_size > self._taken
        except OSError:
            return False

    def take(self) -> bytes:
        """The next piece of text, at most CHUNK bytes; empty if there is none now."""
        try:
            if self._file < 0:
                self._file = os.open(self.raw, os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(self._file, CHUNK, self._taken)
        except OSError:
            return b""
        self._taken += len(data)
        return data

    def close_writer(self) -> None: ...

    def release(self) -> None:
        self.closed = True
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


class Capture:
    """The thread that empties all pipes. `on_text` is called, from that thread, when there is something to take."""

    def __init__(self, on_text: Callable[[], None]) -> None:
        self._on_text = on_text
        self._streams: dict[int, Stream] = {}
        self._lock = threading.Lock()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        self._stopping = False
        self._last_moved = 0
        self._thread = threading.Thread(target=self._run, name="rankcall-capture", daemon=True)
        self._started = False

    def add(self, stream: Stream) -> None:
        """Begin to empty a stream."""
        with self._lock:
            self._streams[stream.reader] = stream
        if not self._started:
            self._started = True
            self._thread.start()
        self._wake()

    def flush(self, streams: Sequence[Stream | FileStream], patience: float) -> None:
        """Wait until what ended processes have printed is taken, at most `patience` seconds."""
        until = time.monotonic() + patience
        while self._thread.is_alive() and time.monotonic() < until:
            if not any(isinstance(stream, Stream) and _readable(stream) for stream in streams):
                return
            time.sleep(GATHER)

    def stop(self) -> None:
        """Take what is there, then end. What a left-over process prints later has no reader."""
        self._stopping = True
        self._wake()
        while self._thread.is_alive():
            self._thread.join(0.2)  # in pieces, so that Ctrl-C gets through

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_writer, b".")

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._wake_reader, select.POLLIN)
        watched: set[int] = set()
        end: float | None = None
        while True:
            if self._stopping and end is None:
                end = time.monotonic() + LAST_ROUND
            try:
                more = self._turn(poller, watched, waiting=end is None)
            except Exception:
                # Were this thread to end, every rank would wait for ever to print its next line.
                if os.environ.get("RANKCALL_DEBUG"):
                    raise
                time.sleep(GATHER)
                more = False
            if end is not None and (not more or time.monotonic() > end):
                return

    def _turn(self, poller: select.poll, watched: set[int], waiting: bool) -> bool:
        """One round; True if there may be more at once."""
        crowded = self._watch(poller, watched)
        ready = [number for number, _ in poller.poll(20 if crowded else None if waiting else 0)]
        if waiting and ready != [self._wake_reader] and self._last_moved < CHUNK // 2:
            time.sleep(GATHER)
        self._last_moved = self._receive(ready)
        if self._last_moved:
            self._on_text()
        return self._last_moved > 0 or crowded

    def _watch(self, poller: select.poll, watched: set[int]) -> bool:
        """Poll exactly the open streams that may take more; True if one had to be left out."""
        with self._lock:
            closed = [number for number, stream in self._streams.items() if stream.closed]
            for number in closed:
                del self._streams[number]
            wanted = {number for number, stream in self._streams.items() if not stream.crowded}
            crowded = len(wanted) < len(self._streams)
        for number in watched - wanted:
            poller.unregister(number)
        for number in wanted - watched:
            poller.register(number, select.POLLIN)
        watched.clear()
        watched.update(wanted)
        return crowded

    def _receive(self, ready: list[int]) -> int:
        """Empty the pipes that have something; how many bytes there were, and one for each that has ended."""
        moved = 0
        for number in ready:
            if number == self._wake_reader:
                with contextlib.suppress(OSError):
                    os.read(self._wake_reader, 4096)
                continue
            with self._lock:
                stream = self._streams.get(number)
            # A few rounds a stream, then the next one: no rank starves the others.
            for _ in range(4):
                taken = stream.receive() if stream is not None and not stream.crowded else 0
                moved += taken
                if not taken:
                    break
            moved += stream is not None and stream.closed
        return moved


def _readable(stream: Stream) -> bool:
    if stream.closed:
        return False
    poller = select.poll()
    try:
        poller.register(stream.reader, select.POLLIN)
        return bool(poller.poll(0))
    except (OSError, ValueError):
        return False
