"""The launcher's side of the guard (see `guard_process`): no rank outlives a launcher that was killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rankcall.launch.guard_process import look_at

MARK_VARIABLE = "RANKCALL_GUARDED_BY"


class Guard:
    """Starts the guard process. If it cannot be started or dies, the job runs without it."""

    def __init__(self, run_id: str) -> None:
        self._value = f"{run_id}-{os.getpid()}"
        self.mark = f"{MARK_VARIABLE}={self._value}"
        self._process: subprocess.Popen[bytes] | None = None
        self._known: dict[int, int] = {}
        program = Path(__file__).with_name("guard_process.py")
        # -I and -S: nothing of the user's environment, no site-packages: up in 10 ms, and nothing in it can fail.
        command = [sys.executable, "-I", "-S", str(program), self.mark]
        with contextlib.suppress(OSError, ValueError), _signals_blocked():
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",  # so that it keeps no file system busy
                env={},  # in particular not the mark of an outer run
                start_new_session=True,
                bufsize=0,
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def rank_environment(self) -> dict[str, str]:
        """What marks every process below the ranks, also those that leave their session."""
        return {MARK_VARIABLE: self._value}

    def keep(self, memory: Path, attempt: Path) -> None:
        """What to save of the ranks' records, and where to, if we are killed."""
        text = f"keep {memory}\0{attempt}"
        if "\n" not in text:
            self._say(text)

    def rank_started(self, pid: int) -> None:
        seen = look_at(pid)
        if seen is not None:
            self._known[pid] = seen[0]
            self._say(f"rank {pid} {seen[0]}")

    def rank_ended(self, pid: int) -> None:
        """Its number may soon belong to somebody else. What it left behind still carries the mark."""
        start = self._known.pop(pid, None)
        if start is not None:
            self._say(f"gone {pid} {start}")

    def goodbye(self) -> None:
        """The job is over in the ordinary way."""
        self._say("bye")
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()

    def _say(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.write(line.encode() + b"\n")


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """A child begins with the mask of its parent: the guard is deaf from its first instant on."""
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGUSR1", "SIGUSR2")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {getattr(signal, name) for name in names})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
