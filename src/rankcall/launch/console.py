"""Brings the ranks' text to the console and into HOST-rankN.log, at the console's own pace.

stdout goes to stdout and stderr to stderr, whole lines together, bytes unchanged; a started line is shown after a
moment too, so that progress bars move. Which tracebacks are shortened is decided in `tracebacks`.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rankcall.launch.streams import FileStream, Stream, StreamName
from rankcall.launch.tracebacks import Shown, StderrFilter

# A started line waits so long for its end (seconds): a progress bar has none.
LINE_PATIENCE = 0.2
# A line longer than this is passed on in pieces.
MOST_OF_A_LINE = 1 << 16

# Files that ranks write by themselves are looked at so often (seconds).
LOOK_EVERY = 0.03

LOG_HEAD = (
    b"# Times are when rankcall read a line, UTC; the rank wrote it shortly before. out = stdout, err = stderr.\n"
)
_LOG_MARKS: dict[StreamName, bytes] = {"stdout": b" out | ", "stderr": b" err | "}
_FILE_NUMBERS: dict[StreamName, int] = {"stdout": 1, "stderr": 2}


class Output:
    """Everything one rank prints in one attempt."""

    def __init__(self, rank: int, log: Path, streams: tuple[Stream | FileStream, ...], shown: Shown) -> None:
        self.rank = rank
        self.streams = streams
        self.filter = StderrFilter(rank, shown)
        self.lines = {stream.name: Lines() for stream in streams}
        self.log = TimedLog(log)
        self.process_ended: bool | None = None  # None while it lives; then whether it failed
        self.plain = False  # something went wrong with the niceties: bytes are passed on as they come
        self.done = False


class Lines:
    """Cuts a stream into whole lines and a started one."""

    def __init__(self) -> None:
        self._started = b""
        self._since = 0.0
        self.inside = False  # the beginning of the current line has been passed on already

    @property
    def started_since(self) -> float | None:
        return self._since if self._started else None

    def feed(self, data: bytes, now: float) -> tuple[bytes, bytes]:
        """The rest of a line whose beginning was passed on, and the whole lines after it."""
        end = data.rfind(b"\n") + 1
        whole, rest = self._started + data[:end] if end else b"", data[end:]
        if end:
            self._started = b""
        if rest and not self._started:
            self._since = now
        self._started += rest
        if not end:
            return b"", b""
        if not self.inside:
            return b"", whole
        self.inside = False
        first = whole.find(b"\n") + 1
        return whole[:first], whole[first:]

    def take_started(self) -> bytes:
        """What there is of the started line; the rest of it will come as the rest of a line."""
        started, self._started = self._started, b""
        self.inside = self.inside or bool(started)
        return started

    @property
    def too_long(self) -> bool:
        return len(self._started) > MOST_OF_A_LINE


class TimedLog:
    """HOST-rankN.log: both streams of a rank, line by line with times. What cannot be written is left out."""

    def __init__(self, path: Path) -> None:
        self._started: dict[StreamName, bytes] = {"stdout": b"", "stderr": b""}
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            self._file = -1
        self._put(LOG_HEAD)

    def add(self, name: StreamName, data: bytes, now: float) -> None:
        # A progress bar ends its lines with carriage returns: here each state is a line of its own.
        text = self._started[name] + data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = text.rfind(b"\n") + 1
        if len(text) - end > MOST_OF_A_LINE:
            text += b"\n"
            end = len(text)
        self._started[name] = text[end:]
        if end:
            mark = _stamp(now) + _LOG_MARKS[name]
            self._put(mark + text[: end - 1].replace(b"\n", b"\n" + mark) + b"\n")

    def close(self, now: float) -> None:
        for name, started in self._started.items():
            if started:
                self.add(name, b"\n", now)
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _put(self, data: bytes) -> None:
        if self._file < 0:
            return
        with contextlib.suppress(OSError):
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])


class Console:
    """The thread that shows what was taken. `exclusive()` keeps it still while something else is printed."""

    def __init__(self) -> None:
        self.broken: set[int] = set()  # console streams that nobody reads any more
        self._outputs: list[Output] = []
        self._text = threading.Event()
        self._writing = threading.RLock()
        self._line_open = {1: False, 2: False}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rankcall-console", daemon=True)

    def add(self, output: Output) -> None:
        self._outputs.append(output)
        if not self._thread.is_alive() and not self._stopping:
            self._thread.start()

    def notify(self) -> None:
        """There is text to take, or something changed."""
        self._text.set()

    def process_ended(self, rank: int, failed: bool) -> None:
        """The latest process of a rank is gone; what it printed before is on its way."""
        for output in reversed(self._outputs):
            if output.rank == rank:
                output.process_ended = failed
                break
        self.notify()

    def stop(self) -> None:
        """Show the rest, then end. Waits for the console; Ctrl-C gets through."""
        self._stopping = True
        self.notify()
        while self._thread.is_alive():
            self._thread.join(0.2)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Print something of our own, on a line of its own."""
        with self._writing:
            if self._line_open[2] or (self._line_open[1] and _is_terminal(1) and _is_terminal(2)):
                self._write(2, b"\n")
                self._line_open[1] = False
            yield

    def _run(self) -> None:
        while True:
            stopping = self._stopping
            self._text.clear()
            busy = self._round(time.monotonic())
            if stopping and not busy:
                for output in self._outputs:
                    self._finish(output)
                return
            if not busy:
                self._text.wait(self._patience())

    def _patience(self) -> float | None:
        """Until when nothing has to be done unless text comes."""
        now = time.monotonic()
        times = [output.filter.deadline for output in self._outputs]
        for output in self._outputs:
            for lines in output.lines.values():
                if lines.started_since is not None and not self._held_back(output, lines):
                    times.append(lines.started_since + LINE_PATIENCE)
        if any(isinstance(stream, FileStream) for output in self._outputs for stream in output.streams):
            times.append(now + LOOK_EVERY)
        known = [moment for moment in times if moment is not None]
        return max(min(known) - now, 0.005) if known else None

    def _round(self, now: float) -> bool:
        """One look at every output; True if there was text."""
        busy = False
        for output in list(self._outputs):
            for stream in output.streams:
                data = stream.take()
                if data:
                    busy = True
                    self._show_surely(output, stream, data, now)
            try:
                self._pass_time(output, now)
            except Exception:
                self._give_up_niceties(output)
        self._outputs = [output for output in self._outputs if not output.done]
        return busy

    def _show_surely(self, output: Output, stream: Stream | FileStream, data: bytes, now: float) -> None:
        """Whatever goes wrong in here, the text reaches the console."""
        if not output.plain:
            try:
                self._show(output, stream, data, now)
                return
            except Exception:
                self._give_up_niceties(output)
        if stream.to_console:
            self._write(_FILE_NUMBERS[stream.name], data)

    def _give_up_niceties(self, output: Output) -> None:
        if os.environ.get("RANKCALL_DEBUG"):
            raise
        output.plain = True

    def _show(self, output: Output, stream: Stream | FileStream, data: bytes, now: float) -> None:
        output.log.add(stream.name, data, time.time())
        if not stream.to_console:
            return
        lines = output.lines[stream.name]
        rest, whole = lines.feed(data, now)
        if stream.name == "stderr" and whole:
            whole = output.filter.feed(whole, now)
        self._write(_FILE_NUMBERS[stream.name], rest + whole)
        if lines.too_long:
            self._show_started(output, stream)

    def _show_started(self, output: Output, stream: Stream | FileStream) -> None:
        held = output.filter.give_up() if stream.name == "stderr" else b""
        self._write(_FILE_NUMBERS[stream.name], held + output.lines[stream.name].take_started())

    def _held_back(self, output: Output, lines: Lines) -> bool:
        """A started line of stderr waits behind a traceback that is held."""
        return lines is output.lines.get("stderr") and not output.filter.idle

    def _pass_time(self, output: Output, now: float) -> None:
        self._write(2, output.filter.tick(now))
        for stream in output.streams:
            lines = output.lines[stream.name]
            since = lines.started_since
            if not stream.to_console or since is None or self._held_back(output, lines):
                continue
            if now >= since + LINE_PATIENCE:
                self._show_started(output, stream)
        if output.process_ended is not None and not any(stream.has_text for stream in output.streams):
            self._write(2, output.filter.ended(output.process_ended, now))
            if all(stream.closed for stream in output.streams):
                self._finish(output)

    def _finish(self, output: Output) -> None:
        if output.done:
            return
        output.done = True
        now = time.monotonic()
        for stream in output.streams:
            while data := stream.take():
                self._show_surely(output, stream, data, now)
        self._write(2, output.filter.finish(now))
        for stream in output.streams:
            self._write(_FILE_NUMBERS[stream.name], output.lines[stream.name].take_started())
            stream.release()
        output.log.close(time.time())

    def _write(self, number: int, data: bytes) -> None:
        if not data or number in self.broken:
            return
        with self._writing:
            self._line_open[number] = not data.endswith((b"\n", b"\r"))
            view = memoryview(data)
            while view:
                try:
                    view = view[os.write(number, view) :]
                except BlockingIOError:
                    select.select([], [number], [], 1.0)
                except OSError:
                    # `| head` is enough for its reader: the job goes on, and its files are whole.
                    self.broken.add(number)
                    return


def _is_terminal(number: int) -> bool:
    try:
        return os.isatty(number)
    except OSError:
        return False


def _stamp(now: float) -> bytes:
    whole = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now))
    return f"{whole}.{int(now % 1 * 1000):03d}".encode()
