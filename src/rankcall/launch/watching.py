"""What the launcher needs of the watcher, and a stand-in for the case that there can be none."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from rankcall.findings import Job as ReportedJob
from rankcall.findings import Outcome, Report, report_to_json
from rankcall.rundir import RunFolder
from rankcall.snapshot import Snapshot
from rankcall.watch.joining import Store
from rankcall.watch.started import StartedRank


class Watching(Protocol):
    """The watcher as the launcher uses it. `process_exited` and `collect` may be called from any thread."""

    def rank_environment(self) -> dict[str, str]: ...
    def start(self) -> None: ...
    def ranks_started(self, attempt: int, ranks: Mapping[int, StartedRank], world_size: int) -> None: ...
    def join(self, store: Store, node: int, nodes: int) -> None: ...
    def process_exited(
        self, pid: int, *, code: int | None, signal: int | None, killed_by_launcher: bool = False
    ) -> None: ...
    def command_started(self, pid: int) -> None: ...
    def log_paths(self, rank: int, paths: Sequence[Path]) -> None: ...
    def collect(self, reason: Literal["exit", "interrupt", "stall"], budget_s: float) -> Snapshot: ...
    def launcher_failed(self, error: BaseException) -> None: ...
    def finish(self, outcome: Literal["completed", "crashed", "stopped", "hung"], exit_code: int) -> Report: ...


class MakeWatcher(Protocol):
    def __call__(
        self,
        folder: RunFolder,
        *,
        command: Sequence[str],
        stall_after: float | None,
        on_report: Callable[[Report], None],
        on_stop: Callable[[Report], None] | None,
        on_status: Callable[[str], None] | None,
    ) -> Watching: ...


def make_watcher(
    folder: RunFolder,
    *,
    command: Sequence[str],
    stall_after: float | None,
    on_report: Callable[[Report], None],
    on_stop: Callable[[Report], None] | None,
    on_status: Callable[[str], None] | None,
) -> Watching:
    """The watcher of this package."""
    from rankcall.watch import Watcher

    return Watcher(
        folder,
        command=command,
        stall_after=stall_after,
        on_report=on_report,
        on_stop=on_stop,
        on_status=on_status,
    )


class Unwatched:
    """Stands where a watcher cannot be: the job runs, and nothing is known of it but its end."""

    def __init__(self, folder: RunFolder, command: Sequence[str]) -> None:
        self._folder = folder
        self._command = tuple(command)

    def rank_environment(self) -> dict[str, str]:
        return {}

    def start(self) -> None: ...

    def ranks_started(self, attempt: int, ranks: Mapping[int, StartedRank], world_size: int) -> None: ...

    def join(self, store: Store, node: int, nodes: int) -> None: ...

    def process_exited(
        self, pid: int, *, code: int | None, signal: int | None, killed_by_launcher: bool = False
    ) -> None: ...

    def command_started(self, pid: int) -> None: ...

    def log_paths(self, rank: int, paths: Sequence[Path]) -> None: ...

    def collect(self, reason: Literal["exit", "interrupt", "stall"], budget_s: float) -> Snapshot:
        return Snapshot(taken_at=0.0)

    def launcher_failed(self, error: BaseException) -> None: ...

    def finish(self, outcome: Outcome, exit_code: int) -> Report:
        job = ReportedJob(None, (socket.gethostname(),), self._command, None, str(self._folder.path))
        report = Report(verb="run", job=job, outcome=outcome)
        self._folder.write_report(report_to_json(report))
        return report
