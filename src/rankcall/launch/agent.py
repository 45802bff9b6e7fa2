"""Our eyes in torch's elastic launcher: every private name of torch that is leaned on is in this file.

torch's agent class is replaced, for one launch, by a subclass that reports to the `Job`. Importing this module raises
ImportError where torch has not the names it needs; then `torchrun` runs the launcher as it is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping

from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing import api as processes
from torch.distributed.launcher import api as launcher

from rankcall.launch.job import Job, StoppedByRankcall
from rankcall.launch.signals import Interrupted
from rankcall.launch.streams import StreamName
from rankcall.watch.started import StartedRank

# A hung rank that ignores SIGTERM gets SIGKILL after this time (seconds). torch's own 30 s are for ranks that work.
STOP_PATIENCE = 5

# Opening a path in here opens a pipe of ours anew. /dev/fd is missing in bare containers.
_OWN_FILES = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"

_NEEDED = (
    (launcher, "LocalElasticAgent"),
    (processes, "_terminate_process_handler"),
    (LocalElasticAgent, "_start_workers"),
    (LocalElasticAgent, "_monitor_workers"),
    (LocalElasticAgent, "_stop_workers"),
    (LocalElasticAgent, "_shutdown"),
)
if not all(hasattr(owner, name) for owner, name in _NEEDED) or launcher.LocalElasticAgent is not LocalElasticAgent:
    raise ImportError("another launcher than the one that this was written for")


@contextlib.contextmanager
def our_agent(job: Job, own_log_dir: bool) -> Iterator[None]:
    """Have torch make our agent instead of its own, for the time of one launch.

    `own_log_dir`: the folder of torch's own logs was chosen by rankcall, not by the user.
    """

    def make(*args: object, **settings: object) -> object:
        agent = ReportingAgent(*args, **settings)
        agent.job, agent.own_log_dir = job, own_log_dir
        return agent

    launcher.LocalElasticAgent = make
    try:
        yield
    finally:
        launcher.LocalElasticAgent = LocalElasticAgent


class ReportingAgent(LocalElasticAgent):  # type: ignore[misc]
    """Tells the job what happens to the ranks, and when they are about to be ended."""

    job: Job
    own_log_dir = False  # the folder of torch's logs was chosen by rankcall
    attempt = -1
    _logs_specs: LogsSpecs

    def _start_workers(self, worker_group):  # type: ignore[no-untyped-def]
        self.attempt += 1
        world_size = worker_group.workers[0].world_size
        nothing: dict[str, str] = {}
        self.job.safely(lambda: self.job.begin_attempt(self.attempt, len(worker_group.workers)), None)
        os.environ.update(self.job.safely(lambda: self.job.attempt_environment(self.attempt), nothing))
        inner: LogsSpecs = self._logs_specs
        self._logs_specs = TakenLogs(inner, self)
        # A signal that comes while processes are being made takes effect when all of them are known.
        with self.job.signals.held():
            try:
                with _our_signals(self.job):
                    pids = super()._start_workers(worker_group)
            finally:
                self._logs_specs = inner
            ranks = [
                StartedRank(pid=pid, rank=worker_group.workers[local].global_rank, local_rank=local)
                for local, pid in pids.items()
            ]
            self.job.safely(lambda: self.job.ranks_started(self.attempt, ranks, world_size), None)
            self.job.safely(lambda: self._meet_other_nodes(worker_group), None)  # type: ignore[no-untyped-call]
            self._watch_closing()
        return pids

    def _monitor_workers(self, worker_group):  # type: ignore[no-untyped-def]
        if self.job.stop_asked.is_set():
            self._pcontext.close(signal.SIGTERM, STOP_PATIENCE)
            raise StoppedByRankcall
        with self.job.signals.held():
            self.job.exits.look()
        return super()._monitor_workers(worker_group)

    def _shutdown(self, death_sig=signal.SIGTERM, timeout=30):  # type: ignore[no-untyped-def]
        if (
            isinstance(sys.exc_info()[1], (SignalException, Interrupted, KeyboardInterrupt))
            and self.job.interrupted_by is None
        ):
            self.job.safely(lambda: self.job.interrupted(int(death_sig)), None)
        super()._shutdown(death_sig, timeout)

    def _stop_workers(self, worker_group):  # type: ignore[no-untyped-def]
        super()._stop_workers(worker_group)
        self.job.safely(self.job.end_leftovers, None)

    @property
    def runs_function(self) -> bool:
        """--run-path: the ranks are functions in processes of ours, not commands."""
        return not isinstance(self._worker_group.spec.entrypoint, str)

    def _meet_other_nodes(self, worker_group):  # type: ignore[no-untyped-def]
        """The launchers of all nodes share torch's rendezvous store: their watchers meet there too."""
        store, nodes = worker_group.store, worker_group.group_world_size
        if store is not None and nodes and nodes > 1:
            # A connection of its own where torch can make one: ours must never keep the launcher waiting.
            own = store.clone() if hasattr(store, "clone") else store
            self.job.watcher.join(own, worker_group.group_rank, nodes)

    def _watch_closing(self) -> None:
        """torch ends the survivors in the same breath in which it sees a failure: look once more before."""
        context = self._pcontext
        close = context.close

        def close_seen(death_sig=None, timeout=30):  # type: ignore[no-untyped-def]
            self.job.safely(self.job.before_closing, None)
            try:
                close(death_sig, timeout)
            finally:
                with self.job.signals.held():
                    for pid, code in _exit_codes(context).items():
                        self.job.exits.reaped(pid, code)

        context.close = close_seen


class TakenLogs(LogsSpecs):  # type: ignore[misc]
    """The user's own choice of logs, except that what would go to the console goes there through us."""

    def __init__(self, inner: LogsSpecs, agent: ReportingAgent) -> None:
        self._inner = inner
        self._agent = agent

    @property
    def root_log_dir(self) -> str:
        return str(self._inner.root_log_dir)

    def reify(self, envs: Mapping[int, dict[str, str]]) -> processes.LogsDest:
        places = self._reify_somewhere(envs)
        filtered = type(self._inner) is DefaultLogsSpecs
        for local, variables in envs.items():
            wanted: dict[StreamName, bool] = {}
            if not places.stdouts[local]:
                wanted["stdout"] = True
            elif places.stdouts[local] == os.devnull and filtered:
                wanted["stdout"] = False  # --local-ranks-filter keeps it from the console, not from the logs
            if not places.stderrs[local]:
                wanted["stderr"] = True
            elif places.stderrs[local] == os.devnull and filtered:
                wanted["stderr"] = False
            self._take(places, local, int(variables["RANK"]), wanted)
        return places

    def _reify_somewhere(self, envs: Mapping[int, dict[str, str]]) -> processes.LogsDest:
        try:
            return self._inner.reify(envs)
        except OSError:
            if not self._agent.own_log_dir:
                raise
            # The run folder's disk is full: torch's error files go where torch puts them by itself.
            self._inner._root_log_dir = tempfile.mkdtemp(prefix="torchelastic_")
            self._inner._run_log_dir = None
            return self._inner.reify(envs)

    def _take(self, places: processes.LogsDest, local: int, rank: int, wanted: dict[StreamName, bool]) -> None:
        job, attempt = self._agent.job, self._agent.attempt
        elsewhere = [path for path in (places.stdouts[local], places.stderrs[local]) if path and path != os.devnull]
        try:
            # A function's process opens its streams by itself, and as files.
            streams = job.open_output(attempt, rank, wanted, elsewhere, as_files=self._agent.runs_function)
        except Exception as error:
            reason = error.strerror if isinstance(error, OSError) else repr(error)
            job.note(f"no log files: {reason}; the ranks print to the console directly.")
            return
        for name, stream in streams.items():
            chosen = places.stdouts if name == "stdout" else places.stderrs
            chosen[local] = f"{_OWN_FILES}/{stream.writer}" if stream.writer >= 0 else str(stream.raw)


@contextlib.contextmanager
def _our_signals(job: Job) -> Iterator[None]:
    """torch installs a handler with the first process; have it install ours, which raises the same, but only once."""
    theirs = getattr(processes, "_terminate_process_handler", None)
    job.signals.raise_as(_signal_exception)
    processes._terminate_process_handler = job.signals.handle
    try:
        yield
    finally:
        processes._terminate_process_handler = theirs


def _signal_exception(number: int) -> BaseException:
    error: BaseException = SignalException(f"Process {os.getpid()} got signal: {number}", signal.Signals(number))
    return error


def _exit_codes(context: processes.PContext) -> dict[int, int | None]:
    """pid -> return code of the processes that torch has waited for."""
    handlers = getattr(context, "subprocess_handlers", None)
    if handlers is not None:
        ran = [handler.proc for handler in handlers.values()]
        return {process.pid: process.returncode for process in ran if process.returncode is not None}
    started = getattr(getattr(context, "_pc", None), "processes", [])
    return {process.pid: process.exitcode for process in started if process.exitcode is not None}
