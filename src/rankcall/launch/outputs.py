"""What the ranks of this machine print, from the pipes they print into to the console: capture, files, logs."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Mapping
from pathlib import Path

from rankcall.launch.console import Console, Output
from rankcall.launch.streams import Capture, FileStream, Stream, StreamName
from rankcall.launch.tracebacks import Shown
from rankcall.rundir import RunFolder

# What ended ranks have printed is on its way for so long at most (seconds).
PATIENCE = 1.0
# A rank's pipes and files, with those that torch opens for it, and what everything else needs at most.
DESCRIPTORS_OF_A_RANK = 12
SPARE_DESCRIPTORS = 48


class Outputs:
    """Opens the streams of each attempt's ranks, and shows everything before it stops."""

    def __init__(self, folder: RunFolder) -> None:
        self.console = Console()
        self._folder = folder
        self._host = socket.gethostname()
        self._capture = Capture(self.console.notify)
        self._streams: list[Stream | FileStream] = []
        self._files: dict[int, Path] = {}
        self._fit = True
        self.begin_attempt(1)

    @property
    def unsaved(self) -> int:
        """Bytes that are in no file."""
        return sum(stream.unsaved for stream in self._streams)

    def begin_attempt(self, ranks: int) -> None:
        """Take what an earlier attempt has printed, and forget what was shown of it."""
        self._capture.flush(self._streams, PATIENCE)
        self.processes_started()
        self._fit = _free_descriptors() >= ranks * DESCRIPTORS_OF_A_RANK + SPARE_DESCRIPTORS
        files: dict[int, Path] = {}
        self._files = files
        self._shown = Shown(ranks=ranks, text_of=lambda rank: self._text_of(files, rank))

    def open(
        self, attempt: int, rank: int, wanted: Mapping[StreamName, bool], name: str, as_files: bool
    ) -> dict[StreamName, Stream | FileStream]:
        """Take streams of a rank: `wanted` says of each whether it is shown on the console.

        `name` stands in the files' names. `as_files`: the rank can only write to files. Raises OSError when there are
        no more file descriptors; then the rank should print as it would without us.
        """
        if not self._fit:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        logs = self._folder.attempt(attempt) / "logs"
        stem = f"{self._host}-{name}"
        streams: dict[StreamName, Stream | FileStream] = {}
        kind = FileStream if as_files else Stream
        try:
            for stream_name, to_console in wanted.items():
                streams[stream_name] = kind(stream_name, logs / f"{stem}.{stream_name}", to_console)
        except OSError:
            for stream in streams.values():
                stream.release()
            raise
        if streams:
            self._files[rank] = logs / f"{stem}.stderr"
            self.console.add(Output(rank, logs / f"{stem}.log", tuple(streams.values()), self._shown))
        for stream in streams.values():
            if isinstance(stream, Stream):
                self._capture.add(stream)
            self._streams.append(stream)
        return streams

    def processes_started(self) -> None:
        """The ranks have their ends of the pipes; ours would keep them open for ever."""
        for stream in self._streams:
            stream.close_writer()

    def job_is_failing(self, interrupted: bool = False) -> None:
        """From now on what ranks print may be echoes of what another has printed."""
        self._shown.failing = True
        self._shown.interrupted = self._shown.interrupted or interrupted

    def process_ended(self, rank: int, failed: bool) -> None:
        self.console.process_ended(rank, failed)

    def stop_taking(self) -> None:
        """Take what is left in the pipes: the files are whole then."""
        self._capture.flush(self._streams, PATIENCE)
        self._capture.stop()

    def stop_showing(self) -> None:
        """Show the rest. A paused terminal may take for ever; Ctrl-C gets through."""
        self.console.stop()

    def _text_of(self, files: Mapping[int, Path], rank: int) -> str:
        path = files.get(rank, self._folder.path)
        try:
            return str(path.relative_to(Path.cwd()))
        except (ValueError, OSError):
            return str(path)


def _free_descriptors() -> int:
    """How many more files this process may open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return 1 << 20
    try:
        return limit - len(os.listdir("/proc/self/fd"))
    except OSError:
        return limit - SPARE_DESCRIPTORS
