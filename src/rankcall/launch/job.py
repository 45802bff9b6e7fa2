"""One job from its start to its last word: the run folder, what the ranks print, their ends, the watcher, the guard.

How ranks are started is not its business: `torchrun` does it with torch's elastic launcher, `command` around any other.
Once ranks run, nothing in here may end them by mistake: every call of the watcher is wrapped.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, TypeVar

from rankcall.errors import RankcallError
from rankcall.findings import Report
from rankcall.launch import environment, sessions
from rankcall.launch.exits import Ended, ExitWatch
from rankcall.launch.guard import Guard
from rankcall.launch.options import Options
from rankcall.launch.outputs import Outputs
from rankcall.launch.signals import Signals, signal_name
from rankcall.launch.streams import FileStream, Stream, StreamName
from rankcall.launch.voice import Voice
from rankcall.launch.watching import MakeWatcher, Unwatched, Watching, make_watcher
from rankcall.rundir import RunFolder, create_run_folder
from rankcall.snapshot import Snapshot
from rankcall.watch.started import StartedRank

_T = TypeVar("_T")
Outcome = Literal["completed", "crashed", "stopped", "hung"]

# Time for evidence while the survivors of a failure still live, and when somebody waits at the keyboard (seconds).
EXIT_BUDGET = 0.2
INTERRUPT_BUDGET = 0.5
# What a failed rank left running in its session gets so long to end (seconds).
LEFTOVER_PATIENCE = 2.0

# How much of an error's text is printed where there is no verdict.
MOST_OF_AN_ERROR = 400

# The exit code of a job that rankcall stopped, as of `timeout`.
STOPPED_BY_RANKCALL = 124


@dataclass(frozen=True)
class Launched:
    """How the ranks' launcher came back. `error` is its own failure, not a rank's."""

    outcome: Outcome
    exit_code: int
    error: BaseException | None = None


class StoppedByRankcall(Exception):
    """`--on-hang stop`: raised through torch's agent, which then neither restarts nor waits."""


class Job:
    """Shared by everything that takes part in one run."""

    def __init__(self, options: Options, script: str, argv: Sequence[str], make: MakeWatcher | None = None) -> None:
        self.options = options
        self.argv = tuple(argv)
        self.folder: RunFolder = create_run_folder(options.run_dir, script, self.argv)
        self.signals = Signals(at_once=self.end_at_once)
        self.guard = Guard(self.folder.id)
        self.outputs = Outputs(self.folder)
        self.exits = ExitWatch(self._ended)
        self.voice = Voice(options, self.outputs.console)
        self.stop_asked = threading.Event()
        self.ranks_ran = False
        self.notes: list[str] = []
        self._notes_said = 0
        self._facts: dict[str, object] = {}
        self._ranks: dict[int, StartedRank] = {}  # by pid, of the present attempt
        self._on_stop: Callable[[], None] | None = None
        self._closing = False
        self._collected = False
        self._watch_finished = False
        self.interrupted_by: int | None = None
        self._host = socket.gethostname()
        self.watcher: Watching = self._make_watcher(make or make_watcher)

    # --- before the start -------------------------------------------------------------------------------------

    def rank_environment(self) -> dict[str, str]:
        """What the launcher's environment, which the ranks inherit, gets beside the user's own."""
        nothing: dict[str, str] = {}
        changes = dict(self.safely(self.watcher.rank_environment, nothing))
        changes.setdefault("RANKCALL_LAUNCHER", str(os.getpid()))
        changes.update(environment.console_defaults(os.environ))
        changes.update(self.guard.rank_environment())
        changes.update(self.safely(lambda: self.attempt_environment(0), nothing))
        return changes

    def attempt_environment(self, attempt: int) -> dict[str, str]:
        """What differs from attempt to attempt. A user's own settings are found in the environment and left alone."""
        dumps = self.folder.attempt(attempt) / "dumps"
        mine = {name: value for name, value in os.environ.items() if str(self.folder.path) not in value}
        return environment.flight_recorder_defaults(mine, _torch_version(), dumps)

    def write_run(self, form: str) -> None:
        """run.json. `form` is torchrun or command."""
        options = self.options
        self._facts = {
            "form": form,
            "command": list(self.argv),
            "host": self._host,
            "pid": os.getpid(),
            "directory": _here(),
            "started_at": time.time(),
            "python": sys.version.split()[0],
            "torch": _torch_version(),
            "options": {"stall_after": options.stall_after, "on_hang": options.on_hang},
            "nccl_async_error_handling": environment.error_handling_note(os.environ),
        }
        self.folder.write_run(self._facts)

    def start(self) -> None:
        """Begin to watch. Nothing runs yet."""
        self.safely(self.watcher.start, None)
        self._say_notes()
        self.voice.detail(f"the run folder is {self.folder.path}")

    # --- ranks start ------------------------------------------------------------------------------------------

    def begin_attempt(self, attempt: int, ranks: int) -> None:
        """Called before the processes of an attempt are started; `ranks` is how many this machine will have."""
        self.outputs.begin_attempt(ranks)
        self._keep_records(attempt)
        self._ranks.clear()
        self._closing = self._collected = False
        if attempt > 0:
            self.voice.line(f"the ranks are started again (attempt {attempt}; the first was 0)")

    def _keep_records(self, attempt: int) -> None:
        memory = getattr(self.watcher, "records", None)
        place = self.folder.attempt(attempt)
        if isinstance(memory, Path):
            self.guard.keep(memory, place)

    def open_output(
        self,
        attempt: int,
        rank: int,
        wanted: Mapping[StreamName, bool],
        elsewhere: Sequence[str] = (),
        name: str | None = None,
        as_files: bool = False,
    ) -> dict[StreamName, Stream | FileStream]:
        """Take streams of a rank, see `Outputs.open`. `elsewhere` are those that the user has sent to own files."""
        streams = self.outputs.open(attempt, rank, wanted, name or f"rank{rank}", as_files)
        paths = [stream.raw for stream in streams.values()] + [Path(path).absolute() for path in elsewhere]
        self.safely(lambda: self.watcher.log_paths(rank, paths), None)
        return streams

    def ranks_started(self, attempt: int, ranks: Sequence[StartedRank], world_size: int) -> None:
        """Called as soon as their pids are known."""
        self.ranks_ran = True
        for started in ranks:
            self._ranks[started.pid] = started
            self.guard.rank_started(started.pid)
        by_rank = {started.rank: started for started in ranks}
        # First the watcher, then the ends: one may have ended already.
        self.safely(lambda: self.watcher.ranks_started(attempt, by_rank, world_size), None)
        self.exits.add([started.pid for started in ranks])
        self.outputs.processes_started()

    def ranks_unknown(self, on_stop: Callable[[], None]) -> None:
        """torch's launcher starts the ranks without telling us. `on_stop` has it end them."""
        self.ranks_ran = True
        self._on_stop = on_stop
        self.safely(lambda: self.watcher.command_started(os.getpid()), None)

    def command_started(self, pid: int) -> None:
        """The `--` form: one process of ours, ranks somewhere below it."""
        self.ranks_ran = True
        self._ranks[pid] = StartedRank(pid=pid, rank=-1, local_rank=-1)
        self._keep_records(0)
        self.guard.rank_started(pid)
        self.safely(lambda: self.watcher.command_started(pid), None)
        self.exits.add([pid])
        self.outputs.processes_started()

    # --- ranks end --------------------------------------------------------------------------------------------

    def _ended(self, ended: Ended) -> None:
        """A process is gone; called once for each, in order."""
        started = self._ranks.get(ended.pid)
        if started is None:
            return
        self.guard.rank_ended(ended.pid)
        by_us = self._closing and ended.signal in _closing_signals(self.interrupted_by)
        self.safely(
            lambda: self.watcher.process_exited(
                ended.pid, code=ended.code, signal=ended.signal, killed_by_launcher=by_us
            ),
            None,
        )
        if ended.failed:
            self.outputs.job_is_failing()
            if not self._closing and not self._collected:
                self._collected = True
                self.safely(lambda: self.watcher.collect("exit", EXIT_BUDGET), None)
        self.outputs.process_ended(started.rank, ended.failed)

    def before_closing(self) -> None:
        """Called before the launcher ends what still lives: the last look at it."""
        with self.signals.held():
            self.exits.look()
            self._closing = True

    def interrupted(self, number: int) -> None:
        """The launcher was asked to end: show who was where while they all are there."""
        with self.signals.held():
            self.interrupted_by = number
            self.exits.look()
            self.outputs.job_is_failing(interrupted=True)
            snapshot = self.safely(lambda: self.watcher.collect("interrupt", INTERRUPT_BUDGET), None)
            self._closing = True
            if snapshot is not None and snapshot.processes:
                report = self.safely(lambda: _diagnosed(snapshot), None)
                if report is not None:
                    self.voice.line(f"{signal_name(number)}: this is who was where.")
                    self.voice.interrupted(report)
            if self.ranks_ran:
                again = "; a second Ctrl-C ends them at once" if number == signal.SIGINT else ""
                self.voice.line(f"ending the ranks{again}.")

    def end_leftovers(self) -> None:
        """End what failed ranks left running in their sessions."""
        sessions.end(list(self._ranks), LEFTOVER_PATIENCE)

    def stop_command(self, patience: float) -> None:
        """The `--` form: end the command, then whatever of its ranks is left in other sessions."""
        sessions.end(list(self._ranks), patience, self.guard.mark)

    def end_at_once(self) -> None:
        """Kill everything below us, ranks of a launcher of the user's own too."""
        self._closing = True
        sessions.kill(list(self._ranks), self.guard.mark)

    # --- the end ----------------------------------------------------------------------------------------------

    def finish(self, launched: Launched) -> None:
        """Show the rest of the output, then the last word."""
        outcome, exit_code = launched.outcome, launched.exit_code
        if launched.error is not None and outcome == "crashed":
            error = launched.error
            self.safely(lambda: self.watcher.launcher_failed(error), None)
        self.exits.stop()
        self.outputs.stop_taking()
        if outcome != "completed":
            self.end_leftovers()
        self.guard.goodbye()
        self._note_troubles()
        # The report is written before we wait for the console: a paused terminal may take for ever.
        self._watch_finished = True
        report = self.safely(lambda: self.watcher.finish(outcome, exit_code), None)
        if report is None:
            report = Unwatched(self.folder, self.argv).finish(outcome, exit_code)
        self._note_troubles()  # again: the report itself may not have found room
        end = {"ended_at": time.time(), "outcome": outcome, "exit_code": exit_code, "notes": self.notes}
        self.folder.write_run({**self._facts, **end})
        self.outputs.stop_showing()
        stopped = outcome == "hung" and exit_code == STOPPED_BY_RANKCALL
        self.voice.at_end(report, f"stopped the job, as --on-hang stop asks (exit code {exit_code})" if stopped else "")
        self._closing_lines(launched, report)

    def _closing_lines(self, launched: Launched, report: Report) -> None:
        if launched.error is not None:
            if report.verdict is None:
                self.voice.line(f"torch's launcher failed: {_described(launched.error)}")
            self.voice.detail("".join(traceback.format_exception(launched.error)).rstrip())
        self._say_notes()

    def abandon(self) -> None:
        """Leave nothing behind: no process of ours, no record in memory. Called always, also after `finish`."""
        if not self._watch_finished:
            self.safely(lambda: self.watcher.finish("stopped", 1), None)
        self.exits.stop()
        self.guard.goodbye()
        self.signals.restore()

    def note(self, text: str) -> None:
        """Something that rankcall could not do. Said once, at the end; kept in run.json."""
        if text not in self.notes:
            self.notes.append(text)

    def _say_notes(self) -> None:
        """Those that have not been said."""
        for note in self.notes[self._notes_said :]:
            self.voice.line(note)
        self._notes_said = len(self.notes)

    def _note_troubles(self) -> None:
        unsaved = self.outputs.unsaved
        if unsaved:
            self.note(f"{unsaved} bytes of the ranks' output are not in the log files: they could not be written.")
        for trouble in self.folder.troubles:
            self.note(trouble)

    # --- pieces -----------------------------------------------------------------------------------------------

    def _make_watcher(self, make: MakeWatcher) -> Watching:
        on_stop = self._stop_asked if self.options.on_hang == "stop" else None
        try:
            return make(
                self.folder,
                command=self.argv,
                stall_after=self.options.stall_after,
                on_report=self.voice.while_running,
                on_stop=on_stop,
                on_status=self.voice.line,
            )
        except (RankcallError, OSError, ImportError) as error:
            self.note(f"the job is not watched: {error}")
            return Unwatched(self.folder, self.argv)

    def _stop_asked(self, report: Report) -> None:
        self.stop_asked.set()
        if self._on_stop is not None:
            self._on_stop()

    def safely(self, call: Callable[[], _T], otherwise: _T) -> _T:
        """A fault of ours is noted, and is none of the job's business."""
        with self.signals.held():  # so that no signal's exception is taken for a fault
            try:
                return call()
            except Exception as error:
                if os.environ.get("RANKCALL_DEBUG"):
                    raise
                self.note(f"an error of rankcall's own, without harm to the job: {error!r}")
                return otherwise


def _closing_signals(interrupted_by: int | None) -> set[int]:
    return {int(signal.SIGTERM), int(signal.SIGKILL), interrupted_by or int(signal.SIGTERM)}


def _diagnosed(snapshot: Snapshot) -> Report:
    from rankcall.diagnose import diagnose

    return diagnose(snapshot)


def _described(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:MOST_OF_AN_ERROR]}" if text else type(error).__name__


def _torch_version() -> str | None:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _here() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""
