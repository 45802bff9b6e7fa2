"""The ranks' sessions: each rank leads one, so whatever it starts can be found and ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path


def members(ranks: Iterable[int]) -> list[int]:
    """The pids of the ranks that run and of all running processes of their sessions; empty without /proc.

    A rank that is no session leader (a function that torch runs in a process) counts as long as it is our child.
    """
    wanted = set(ranks) - {0}
    sessions = wanted - {os.getsid(0)}
    found = []
    with contextlib.suppress(OSError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                pid = int(entry.name)
                parent, session = _parent_and_session(entry)
                if session in sessions or (pid in wanted and parent == os.getpid()):
                    found.append(pid)
    return found


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def end(sessions: Sequence[int], patience: float) -> None:
    """Ask what is left in these sessions to end; after `patience` seconds make it."""
    left = members(sessions)
    if not left:
        return
    send(left, signal.SIGTERM)
    send(left, signal.SIGCONT)  # a stopped process sees SIGTERM only when it goes on
    until = time.monotonic() + patience
    while left and time.monotonic() < until:
        time.sleep(0.05)
        left = members(sessions)
    kill(sessions)


def kill(sessions: Sequence[int]) -> None:
    """End them at once."""
    for _ in range(3):  # one may have been started while we looked
        left = members(sessions)
        if not left:
            return
        send(left, signal.SIGKILL)
        time.sleep(0.02)


def _parent_and_session(entry: Path) -> tuple[int, int]:
    try:
        fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return -1, -1
    return (-1, -1) if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[3]))
