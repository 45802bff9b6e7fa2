"""`py-spy dump --json` -> frames by thread. Untrusted text: what does not fit is no stack."""

from __future__ import annotations

import msgspec

from rankcall.snapshot import Frame

_MOST_FRAMES = 200


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: int = 0


class _Thread(msgspec.Struct):
    os_thread_id: int | None = None
    thread_name: str | None = None
    frames: list[_Frame] = []


def threads_from_py_spy(data: bytes) -> list[tuple[int, str, tuple[Frame, ...]]]:
    """(native thread id, name, frames innermost first) of each thread; empty for what is no dump."""
    try:
        threads = msgspec.json.decode(data, type=list[_Thread], strict=False)
    except (msgspec.DecodeError, RecursionError):
        return []
    return [
        (
            thread.os_thread_id or 0,
            thread.thread_name or "",
            tuple(Frame(f.filename, f.line, f.name) for f in thread.frames[:_MOST_FRAMES]),
        )
        for thread in threads
    ]
