"""The flight recorder on demand: a daemon thread sleeps on a FIFO and writes torch's own dump when asked.

It answers while the main thread waits in C++; with the GIL held in C it does not, and that is an answer too.
"""

from __future__ import annotations

import atexit
import os
import threading
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
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    _serving = pid
    answer = os.path.join(folder, answer_name(pid, start))
    thread = threading.Thread(target=_loop, args=(descriptor, answer, pid), name="rankcall-dump", daemon=True)
    thread.start()
    atexit.register(_end, descriptor, thread, pid)


def _end(descriptor: int, thread: threading.Thread, pid: int) -> None:
    """A daemon thread that wakes up while Python shuts down is torn out of whatever C++ frame it is in, and that
    ends the process with std::terminate: so it leaves before."""
    try:
        if os.getpid() == pid:
            os.write(descriptor, _LEAVE + b"\n")
            thread.join(timeout=0.5)
    except OSError:
        return


def _loop(descriptor: int, answer: str, pid: int) -> None:
    while os.getpid() == pid:
        try:
            asked = os.read(descriptor, 64)
        except OSError:
            return
        if not asked or _LEAVE in asked:
            return
        try:
            dump = _dumper()
            if dump is None:
                return
            data = dump(True, False)
            text = data if isinstance(data, bytes) else str(data).encode()
            scratch = answer + ".part"
            with open(scratch, "wb") as file:
                file.write(asked.splitlines()[-1] + b"\n" + text)
            os.replace(scratch, answer)
        except Exception:
            recorder.fault("flight recorder")


def _dumper() -> Callable[[bool, bool], object] | None:
    from torch._C import _distributed_c10d

    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        function: Callable[[bool, bool], object] | None = getattr(_distributed_c10d, name, None)
        if function is not None:
            return function
    return None
