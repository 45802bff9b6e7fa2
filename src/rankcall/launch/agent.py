"""torch's elastic launcher, with eyes: every private name of torch that the launcher leans on is in this file.

`launch` runs torch's own `torch.distributed.run.run`, so each version's defaults stay its own; only the agent class
that it makes is replaced by a subclass that reports to the `Job`. Where the names it needs are gone, torch's
launcher runs unchanged, and less is known.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch.distributed.run as torchrun
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing import api as processes
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.launcher import api as launcher

from rankcall.errors import RankcallError
from rankcall.launch.environment import changed_environment
from rankcall.launch.job import STOPPED_BY_RANKCALL, Job, Launched
from rankcall.launch.signals import Interrupted
from rankcall.launch.streams import StreamName
from rankcall.launch.watching import StartedRank

# A hung rank that ignores SIGTERM gets SIGKILL after this time (seconds). torch's own 30 s are for ranks that work.
STOP_PATIENCE = 5

# torchrun's exit code for everything that is no success.
FAILED = 1

# Opening a path in here opens a pipe of ours anew. /dev/fd is missing in bare containers.
_OWN_FILES = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"

_NEEDED = ("_start_workers", "_monitor_workers", "_shutdown")
_INTERRUPTIONS = (SignalException, Interrupted, KeyboardInterrupt)
# What torch's launcher says about a failure is said by the verdict; these messages are kept with -v.
_CHATTER = (
    "Sending process",
    "of binary: ",  # "failed (exitcode: …) … of binary"; that of a function holds the traceback
    "death signal, shutting down workers",
    "Unable to shutdown process",
    "Setting OMP_NUM_THREADS",
)
_CHATTERING = (
    "torch.distributed.run",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
)


class StoppedByRankcall(Exception):
    """`--on-hang stop`: raised through torch's agent, which then neither restarts nor waits."""


def check(arguments: argparse.Namespace) -> None:
    """Have torch judge the values of its options before anything starts. Raises RankcallError."""
    if arguments.logs_specs:
        return  # the user's own class: made once, by torch
    trial = copy.copy(arguments)
    trial.log_dir = os.devnull  # otherwise torch makes a folder
    if trial.master_port is None:
        trial.master_port = 29500
    logger = logging.getLogger("torch.distributed.run")
    before, logger.disabled = logger.disabled, True
    try:
        with changed_environment({"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}):
            torchrun.config_from_args(trial)
    except (ValueError, AssertionError, RuntimeError, TypeError) as error:
        raise RankcallError(f"torch's launcher refuses the options: {_one_line(error)}.") from error
    finally:
        logger.disabled = before


def launch(arguments: argparse.Namespace, job: Job) -> Launched:
    """Run the job to its end. Raises nothing but RankcallError, for what torch refuses at the last moment."""
    own_log_dir = arguments.log_dir is None and _make_log_dir(arguments, job)
    try:
        with _quiet_torch(job), _our_agent(job, own_log_dir):
            # As torchrun's own main does: an outer launcher learns of the failure by its error file.
            record(torchrun.run)(arguments)
    except ChildFailedError:
        return Launched("crashed", FAILED)
    except StoppedByRankcall:
        return Launched("hung", STOPPED_BY_RANKCALL)
    except _INTERRUPTIONS:
        return Launched("stopped", FAILED)
    except Exception as error:
        if not str(error):  # torch's rendezvous time-out says nothing
            error.args = (f"{arguments.nnodes} nodes, rendezvous at {arguments.rdzv_endpoint or 'no endpoint'}",)
        return Launched("crashed", FAILED, error)
    finally:
        if own_log_dir:
            _remove_empty(Path(arguments.log_dir))
    return Launched("completed", 0)


def _make_log_dir(arguments: argparse.Namespace, job: Job) -> bool:
    """Have torch keep its error files in the run folder, where they belong, and not in /tmp for ever."""
    place = job.folder.path / "torchrun"
    try:
        place.mkdir(mode=0o700)
    except OSError:
        return False
    arguments.log_dir = str(place)
    return True


def _remove_empty(folder: Path) -> None:
    """Most runs leave no error file: then nothing of torch's folders stays."""
    for path in sorted(folder.rglob("*"), reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def _our_agent(job: Job, own_log_dir: bool) -> Iterator[None]:
    """Have torch make our agent instead of its own, for the time of one launch."""
    made = getattr(launcher, "LocalElasticAgent", None)
    if made is not LocalElasticAgent or not all(hasattr(LocalElasticAgent, name) for name in _NEEDED):
        job.note("this torch's launcher is not known to rankcall: ranks are started without logs and exit times.")
        job.command_started(os.getpid())
        yield
        return

    def make(*args: object, **settings: object) -> object:
        agent = ReportingAgent(*args, **settings)
        agent.job, agent.own_log_dir = job, own_log_dir
        return agent

    launcher.LocalElasticAgent = make
    try:
        yield
    finally:
        launcher.LocalElasticAgent = made


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
        if isinstance(sys.exc_info()[1], _INTERRUPTIONS) and not self.job.shown.interrupted:
            self.job.safely(lambda: self.job.interrupted(int(death_sig)), None)
        super()._shutdown(death_sig, timeout)

    def _stop_workers(self, worker_group):  # type: ignore[no-untyped-def]
        super()._stop_workers(worker_group)
        self.job.safely(self.job.end_leftovers, None)

    @property
    def runs_function(self) -> bool:
        """--run-path: the ranks are functions in processes of ours, not commands."""
        return not isinstance(self._worker_group.spec.entrypoint, str)

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
def _quiet_torch(job: Job) -> Iterator[None]:
    """Leave out what the verdict says better."""
    if job.options.verbose:
        yield
        return

    def wanted(record: logging.LogRecord) -> bool:
        return not any(text in str(record.msg) for text in _CHATTER)

    loggers = [logging.getLogger(name) for name in _CHATTERING]
    for logger in loggers:
        logger.addFilter(wanted)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(wanted)


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


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
