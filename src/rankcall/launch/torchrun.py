"""Runs torch's own launcher, `torch.distributed.run.run`, so that each torch version's defaults stay its own."""

from __future__ import annotations

import argparse
import contextlib
import copy
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import torch.distributed.run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record

from rankcall.errors import RankcallError
from rankcall.launch.environment import changed_environment
from rankcall.launch.job import STOPPED_BY_RANKCALL, Job, Launched, StoppedByRankcall
from rankcall.launch.signals import Interrupted

# torchrun's exit code for everything that is no success.
FAILED = 1

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
            config, _, _ = torchrun.config_from_args(trial)
        if config.nproc_per_node < 1:
            raise RankcallError(f"--nproc-per-node {arguments.nproc_per_node} starts no rank; give 1 or more.")
    except (ValueError, AssertionError, RuntimeError, TypeError) as error:
        raise RankcallError(f"torch's launcher refuses the options: {_one_line(error)}.") from error
    finally:
        logger.disabled = before


def launch(arguments: argparse.Namespace, job: Job) -> Launched:
    """Run the job to its end. Raises nothing but RankcallError, for what torch refuses at the last moment."""
    own_log_dir = arguments.log_dir is None and _make_log_dir(arguments, job)
    try:
        with _quiet_torch(job), _eyes(job, own_log_dir):
            # As torchrun's own main does: an outer launcher learns of the failure by its error file.
            record(torchrun.run)(arguments)
    except ChildFailedError:
        return Launched("crashed", FAILED)
    except StoppedByRankcall:
        return Launched("hung", STOPPED_BY_RANKCALL)
    except _INTERRUPTIONS:
        if job.stop_asked.is_set():
            return Launched("hung", STOPPED_BY_RANKCALL)
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
def _eyes(job: Job, own_log_dir: bool) -> Iterator[None]:
    """Our agent in the place of torch's; where that cannot be, the ranks are found by their records."""
    try:
        from rankcall.launch.agent import our_agent
    except (ImportError, AttributeError) as error:
        job.note(f"this torch's launcher is not known to rankcall ({error}): no logs, and less evidence.")
        job.ranks_unknown(on_stop=lambda: os.kill(os.getpid(), signal.SIGTERM))
        yield
        return
    with our_agent(job, own_log_dir):
        yield


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


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
