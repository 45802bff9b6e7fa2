"""`rankcall run`: starts the ranks with torch's elastic launcher, or around any other, and says how it went."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankcall.launch.job import Job, Launched
    from rankcall.launch.options import Request
    from rankcall.launch.watching import MakeWatcher

WRONG_USAGE = 2
OWN_ERROR = 70
INTERRUPTED = 130


def main(argv: list[str], make_watcher: MakeWatcher | None = None) -> int:
    """Run a job; `argv` is what follows `rankcall run`. Returns the exit code.

    The job's own exit code; 124 if rankcall stopped it; 2 for wrong usage; 70 for an error of rankcall itself before
    anything was started.
    """
    from rankcall.errors import RankcallError

    try:
        _need_standard_streams()
        return _main(argv, make_watcher)
    except RankcallError as error:
        print(f"rankcall run: {error}", file=sys.stderr)
        return WRONG_USAGE
    except SystemExit as leave:  # --help
        return leave.code if isinstance(leave.code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        print(f"rankcall run: an error of rankcall's own: {error!r}; nothing was started.", file=sys.stderr)
        if "-v" in argv or "--verbose" in argv or os.environ.get("RANKCALL_DEBUG"):
            traceback.print_exc()
        return OWN_ERROR


def _main(argv: Sequence[str], make_watcher: MakeWatcher | None) -> int:
    from rankcall.launch.options import read_request

    request = read_request(argv)
    if request.torch is not None:
        from rankcall.launch import torchrun

        torchrun.check(request.torch)
    from rankcall.launch.job import Job
    from rankcall.launch.signals import Interrupted

    job = Job(request.options, request.script, ["rankcall", "run", *argv], make_watcher)
    code: int | None = None
    try:
        launched = _launch(request, job)
        code = launched.exit_code
        _finish(job, launched)
    except Interrupted as interrupt:
        # While nothing ran yet, or while the console took its time at the end.
        return 128 + interrupt.number if code is None else code
    finally:
        job.abandon()
    return code


def _finish(job: Job, launched: Launched) -> None:
    """The job is over: whatever goes wrong now, its exit code stands."""
    from rankcall.launch.signals import Interrupted

    job.signals.raise_as(Interrupted)
    try:
        job.finish(launched)
    except Exception as error:
        if os.environ.get("RANKCALL_DEBUG"):
            raise
        print(f"rankcall run: the job is over, but an error of rankcall's own came after: {error!r}", file=sys.stderr)


def _launch(request: Request, job: Job) -> Launched:
    from rankcall.launch.environment import changed_environment

    job.signals.install()
    job.write_run("command" if request.command else "torchrun")
    job.start()
    with changed_environment(job.rank_environment()):
        if request.torch is None:
            from rankcall.launch.command import run_command

            return run_command(request.command, job)
        from rankcall.launch import torchrun

        return torchrun.launch(request.torch, job)


def _need_standard_streams() -> None:
    """A closed standard stream would give its number to the first pipe we open."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
