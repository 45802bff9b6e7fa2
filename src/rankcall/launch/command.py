"""The `--` form: runs any launcher command, and leaves it to the watcher to find the ranks by their records."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence

from rankcall.errors import RankcallError
from rankcall.launch.job import STOPPED_BY_RANKCALL, Job, Launched
from rankcall.launch.signals import Interrupted
from rankcall.launch.streams import StreamName

# Launchers use these to tell their ranks something; they are passed on and end nothing of ours.
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
# How often the command is looked at (seconds), and how long it gets to end after --on-hang stop.
_LOOK_EVERY = 0.1
_STOP_PATIENCE = 5.0
# How long the command gets to end after Ctrl-C before all of it is killed, as torchrun gives its ranks (seconds).
_INTERRUPT_PATIENCE = 30.0

_STREAMS: dict[StreamName, bool] = {"stdout": True, "stderr": True}


def run_command(command: Sequence[str], job: Job) -> Launched:
    """Run it to its end. Raises RankcallError if it cannot be started."""
    job.begin_attempt(0, ranks=1)  # whose lines these are is not known, so none is shortened
    started: list[subprocess.Popen[bytes]] = []
    job.signals.install()
    try:
        with job.signals.held():
            started.append(_start(command, job))
        with _passing_on(started[0]):
            return _wait(started[0], job)
    except Interrupted as interrupt:
        if not started:
            return Launched("stopped", 128 + interrupt.number)
        return _interrupt(started[0], job, interrupt.number)


def _start(command: Sequence[str], job: Job) -> subprocess.Popen[bytes]:
    try:
        streams = job.open_output(0, -1, _STREAMS, name="command")
        pipes = {name: stream.writer for name, stream in streams.items()}
    except OSError as error:
        job.note(f"no log files: {error.strerror}; the command prints to the console directly.")
        pipes = {}
    try:
        process = subprocess.Popen(
            list(command), stdout=pipes.get("stdout"), stderr=pipes.get("stderr"), start_new_session=True
        )
    except OSError as error:
        raise RankcallError(f"cannot start {command[0]}: {error.strerror}.") from error
    job.command_started(process.pid)
    return process


def _wait(process: subprocess.Popen[bytes], job: Job) -> Launched:
    while process.poll() is None:
        if job.stop_asked.is_set():
            return _stop(process, job)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_EVERY)
    job.exits.reaped(process.pid, process.returncode)
    code = _exit_code(process)
    return Launched("completed" if code == 0 else "crashed", code)


def _stop(process: subprocess.Popen[bytes], job: Job) -> Launched:
    job.before_closing()
    job.stop_command(_STOP_PATIENCE)
    process.wait()
    return Launched("hung", STOPPED_BY_RANKCALL)


def _interrupt(process: subprocess.Popen[bytes], job: Job, number: int) -> Launched:
    job.interrupted(number)
    until = time.monotonic() + _INTERRUPT_PATIENCE
    _send(process, number)
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_EVERY)
    if process.poll() is None:
        job.end_at_once()
        process.wait()
    return Launched("stopped", _exit_code(process))


@contextlib.contextmanager
def _passing_on(process: subprocess.Popen[bytes]):  # type: ignore[no-untyped-def]
    before = {number: signal.getsignal(number) for number in _PASSED_ON}
    for number in _PASSED_ON:
        signal.signal(number, lambda given, _frame: _send(process, given))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    """To the command's whole group, as a terminal would."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, number)


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """The command's own, and 128 + signal as shells have it."""
    code = process.returncode
    return 128 - code if code < 0 else code
