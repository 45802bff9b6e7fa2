"""Sees a rank end at once, and before anybody reaps it: the order of ends, and time to look at the survivors.

The elastic agent only looks every tenth of a second, and ends all survivors in the same breath.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# Without pidfds (an old kernel, macOS) the thread looks this often (seconds).
LOOK_EVERY = 0.02


@dataclass(frozen=True)
class Ended:
    """A process that is gone: its exit code, or the signal that ended it. Both None: nobody knows."""

    pid: int
    code: int | None
    signal: int | None

    @property
    def failed(self) -> bool:
        return self.code != 0


class ExitWatch:
    """Tells `on_end` of every end, once each, one at a time, from whatever thread saw it first."""

    def __init__(self, on_end: Callable[[Ended], None]) -> None:
        self._on_end = on_end
        self._pids: set[int] = set()
        self._handles: dict[int, int] = {}  # pidfd -> pid
        # One lock around the looking and the telling: when `look` returns, all that was seen has been told.
        self._lock = threading.RLock()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rankcall-exits", daemon=True)

    def add(self, pids: Iterable[int]) -> None:
        """Watch these children of ours."""
        with self._lock:
            for pid in pids:
                self._pids.add(pid)
                with contextlib.suppress(OSError, AttributeError):
                    self._handles[os.pidfd_open(pid)] = pid
        if not self._thread.is_alive() and not self._stopping:
            self._thread.start()
        self._wake()

    def look(self) -> None:
        """Look now. Ends that are seen are told before this returns."""
        with self._lock:
            for pid in sorted(self._pids):
                ended = _ended(pid)
                if ended is not None:
                    self._tell(ended)

    def reaped(self, pid: int, returncode: int | None) -> None:
        """Somebody else has waited for this process; `returncode` as subprocess gives it."""
        with self._lock:
            if pid in self._pids:
                if returncode is None:
                    self._tell(Ended(pid, None, None))
                elif returncode < 0:
                    self._tell(Ended(pid, None, -returncode))
                else:
                    self._tell(Ended(pid, returncode, None))

    def stop(self) -> None:
        self._stopping = True
        self._wake()

    def _tell(self, ended: Ended) -> None:
        self._pids.discard(ended.pid)
        try:
            self._on_end(ended)
        except Exception:  # the launcher goes on; how the process ended is known to torch too
            if os.environ.get("RANKCALL_DEBUG"):
                raise

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_writer, b".")

    def _run(self) -> None:
        while not self._stopping:
            with self._lock:
                handles = dict(self._handles)
                complete = self._pids <= set(handles.values())
            poller = select.poll()
            for handle in (self._wake_reader, *handles):
                poller.register(handle, select.POLLIN)
            ready = [handle for handle, _ in poller.poll(None if complete else int(LOOK_EVERY * 1000))]
            with contextlib.suppress(OSError):
                os.read(self._wake_reader, 4096)
            with self._lock:
                for handle in ready:
                    if handle in self._handles:
                        self._look_at(self._handles.pop(handle))
                        os.close(handle)
                if not complete:
                    self.look()

    def _look_at(self, pid: int) -> None:
        ended = _ended(pid) if pid in self._pids else None
        if ended is not None:
            self._tell(ended)


def _ended(pid: int) -> Ended | None:
    """How a child ended, if it has; it stays for its parent to wait for."""
    if not hasattr(os, "waitid"):  # macOS: torch's own waiting tells, see `reaped`
        return None
    try:
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return None  # reaped already: whoever did it knows the code, see `reaped`
    if status is None:
        return None
    if status.si_code == os.CLD_EXITED:
        return Ended(pid, status.si_status, None)
    return Ended(pid, None, status.si_status)
