"""The ranks' sessions: each rank leads one, so whatever it starts can be found and ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence

from rankcall.launch.guard_process import all_pids, carries, look_at


def members(ranks: Iterable[int], mark: str | None = None) -> list[int]:
    """The pids of the ranks that run and of all running processes of their sessions; empty without /proc.

    A rank that is no session leader (a function that torch runs in a process) counts as long as it is our child.
    With `mark`, also every process that was started with it in its environment, in whatever session.
    """
    wanted = set(ranks) - {0}
    sessions = wanted - {os.getsid(0)}
    found = []
    for pid in all_pids():
        seen = look_at(pid)
        if seen is None or pid == os.getpid():
            continue
        _, parent, session = seen
        ours = session in sessions or (pid in wanted and parent == os.getpid())
        if ours or (mark is not None and carries(pid, os.fsencode(mark))):
            found.append(pid)
    return found


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def end(ranks: Sequence[int], patience: float, mark: str | None = None) -> None:
    """Ask what is left in these sessions to end; after `patience` seconds make it."""
    left = members(ranks)
    if left:
        send(left, signal.SIGTERM)
        send(left, signal.SIGCONT)  # a stopped process sees SIGTERM only when it goes on
        until = time.monotonic() + patience
        while left and time.monotonic() < until:
            time.sleep(0.05)
            left = members(ranks)
    kill(ranks, mark)


def kill(ranks: Sequence[int], mark: str | None = None) -> None:
    """End them at once."""
    for _ in range(5):  # one may have been started while we looked
        left = members(ranks, mark)
        if not left:
            return
        send(left, signal.SIGKILL)
        time.sleep(0.02)
