"""The flight recorder on demand: a daemon thread sleeps on a FIFO and writes torch's own dump when asked.

It answers while the main thread waits in C++; with the GIL held in C it does not, and that is an answer too.
"""

from __future__ import annotations

import _thread
import atexit
import fcntl
import os
import resource
from collections.abc import Callable

from rankcall.record.recorder import recorder
from rankcall.record.writer import process_start

_serving = 0
_LEAVE = b"leave"


def fifo_name(pid: int, start: int) -> str:
    return f"{pid}-{start}.ask"


def answer_name(pid: int, start: int) -> str:
    return f"{pid}-{start}.fr.json"


def serve() -> None:
    """Start the thread, once a process."""
    global _serving
    folder = recorder.identity.get("folder")
    if _serving == os.getpid() or not isinstance(folder, str):
        return
    pid, start = os.getpid(), process_start()
    path = os.path.join(folder, fifo_name(pid, start))
    os.mkfifo(path, 0o600)
    descriptor = high_descriptor(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    status = os.fstat(descriptor)
    _serving = pid
    answer = os.path.join(folder, answer_name(pid, start))
    left = _thread.allocate_lock()
    left.acquire()
    # Not a threading.Thread: a program may count, list or join those, and this one never ends by itself.
    _thread.start_new_thread(_loop, (descriptor, (status.st_dev, status.st_ino), answer, pid, left))
    atexit.register(_end, path, left, pid)


def high_descriptor(descriptor: int) -> int:
    """The same file under a high number: programs close, and count on, the low ones."""
    try:
        limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 65_536)
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(64, limit - 64))
    except (OSError, ValueError):
        return descriptor
    os.close(descriptor)
    return high


def _end(path: str, left: _thread.LockType, pid: int) -> None:
    """A daemon thread that wakes up while Python shuts down is torn out of whatever C++ frame it is in, and that
    ends the process with std::terminate: so it leaves before. Asked by the FIFO's name: the descriptor may be
    somebody else's by now."""
    try:
        if os.getpid() == pid:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(descriptor, _LEAVE + b"\n")
            finally:
                os.close(descriptor)
            left.acquire(timeout=0.5)
    except OSError:
        return


def _loop(descriptor: int, identity: tuple[int, int], answer: str, pid: int, left: _thread.LockType) -> None:
    try:
        while os.getpid() == pid:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != identity:
                return  # closed and given away by the program
            asked = os.read(descriptor, 64)
            if not asked or _LEAVE in asked or not _answer(asked, answer):
                return
    except OSError:
        return
    finally:
        left.release()


def _answer(asked: bytes, answer: str) -> bool:
    """Write one dump; False if this torch has none."""
    try:
        dump = _dumper()
        if dump is None:
            return False
        data = dump(True, False)
        text = data if isinstance(data, bytes) else str(data).encode()
        scratch = answer + ".part"
        with open(scratch, "wb") as file:
            file.write(asked.splitlines()[-1] + b"\n" + text)
        os.replace(scratch, answer)
    except Exception:
        recorder.fault("flight recorder")
    return True


def _dumper() -> Callable[[bool, bool], object] | None:
    from torch._C import _distributed_c10d

    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        function: Callable[[bool, bool], object] | None = getattr(_distributed_c10d, name, None)
        if function is not None:
            return function
    return None
