"""The ranks' sessions: each rank leads one, so whatever it starts can be found and ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path


def members(sessions: Iterable[int]) -> list[int]:
    """The pids of all running processes in these sessions; empty where there is no /proc."""
    wanted = set(sessions) - {os.getsid(0), 0}
    found = []
    with contextlib.suppress(OSError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and _session(entry) in wanted:
                found.append(int(entry.name))
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


def _session(entry: Path) -> int:
    try:
        fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] in (b"Z", b"X") else int(fields[3])
