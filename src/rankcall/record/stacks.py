"""Stacks on demand: C-level faulthandler on a real-time signal, so that they come while the main thread waits in C++.

Each Python process below the launcher, DataLoader workers too, has its own stack file in the record folder. A
process that another program started without us has no handler: the watcher looks at SigCgt before it signals.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import TextIO

from rankcall.record.writer import process_start

_file: TextIO | None = None


def stack_signal() -> int:
    """SIGRTMIN+5: free of users' SIGUSR1/2 and of what libraries take (glibc 0-1, the JVM and profilers low ones)."""
    return int(signal.SIGRTMIN) + 5


def stack_name(pid: int, start: int) -> str:
    return f"{pid}-{start}.stack"


def register(folder: str) -> None:
    """Make this process write its stacks into `folder` when signalled. Silent where it cannot."""
    global _file
    try:
        pid = os.getpid()
        path = os.path.join(folder, stack_name(pid, process_start()))
        _file = open(path, "a", encoding="utf-8", opener=_private)  # noqa: SIM115 (kept open for the handler)
        faulthandler.register(stack_signal(), file=_file, all_threads=True, chain=False)
        if not faulthandler.is_enabled():
            # A crash in native code leaves its stack too. It goes to our file, so the program's stderr stays as it
            # is; a program that enables faulthandler itself simply takes it over.
            faulthandler.enable(file=_file, all_threads=True)
    except (OSError, ValueError, AttributeError, RuntimeError):
        _file = None


def _private(path: str, flags: int) -> int:
    from rankcall.record.dump import high_descriptor

    return high_descriptor(os.open(path, flags | os.O_CLOEXEC, 0o600))
