"""The exit note: what a rank says about its own end, while Python still runs.

An uncaught exception is noted by the excepthook (ours is first in the chain) and again at exit from what the
interpreter kept, for programs that replace the hook. `sys.exit`, `exit` and `os._exit` note the line that called.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import NoReturn

from rankcall.record import layout
from rankcall.record.recorder import recorder
from rankcall.record.writer import now

_noted: set[str] = set()


def describe(error: BaseException, frames: int = 40, text: int = 4000) -> dict[str, object]:
    """An exception as plain data: type, message, frames outermost first, the texts of its causes."""
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    rows = traceback.extract_tb(error.__traceback__)[-frames:]
    chain: list[str] = []
    seen = {id(error)}
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while cause is not None and id(cause) not in seen and len(chain) < 6:
        seen.add(id(cause))
        chain.append(f"{type(cause).__name__}: {_message(cause)}"[:400])
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    note: dict[str, object] = {
        "type": name,
        "message": _message(error)[:text],
        "frames": [[row.filename, row.lineno or 0, row.name] for row in rows],
        "chain": chain,
        "time": now(),
    }
    parameters = getattr(error, "_rankcall_parameters", None)
    if isinstance(parameters, list):
        note["parameters"] = [str(name)[:200] for name in parameters[:50]]
    return note


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as fault:  # a user's __str__ may raise; the note still needs a text
        return f"<no message: {type(fault).__name__}>"


def _write(kind: str, **facts: object) -> None:
    if recorder.writer is None:
        return
    if _noted and kind == "finish":
        return
    if kind == "exit" and not _noted.isdisjoint({"exception", "exit with a reason"}):
        return  # multiprocessing calls sys.exit again on the way out; the first one knew why
    _noted.add("exit with a reason" if kind == "exit" and "exception" in facts else kind)
    from rankcall.record.collectives import sample_groups

    sample_groups()
    recorder.change(layout.PHASE["exit"], 0)
    recorder.writer.write_blob("note", {"kind": kind, "time": now(), **facts})


def note_exception(error: BaseException) -> None:
    """Note an uncaught exception, once."""
    if "exception" in _noted or isinstance(error, (SystemExit, KeyboardInterrupt)):
        return
    recorder.slot.passing = None
    _write("exception", exception=describe(error))


def _site_text(depth: int) -> list[object] | None:
    frame = sys._getframe(depth)
    while frame is not None and recorder._file_kind(frame.f_code.co_filename) == 0:
        if frame.f_back is None:
            break
        frame = frame.f_back
    return [frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name]


def _note_exit(code: object, depth: int) -> None:
    if recorder.on:
        number = code if isinstance(code, int) else (0 if code is None else 1)
        facts: dict[str, object] = {}
        handled = sys.exc_info()[1]
        if number and handled is not None:  # sys.exit(1) inside an except: the exception is the reason
            facts["exception"] = describe(handled)
        _write("exit", code=number, site=_site_text(depth + 1), **facts)


def _forget() -> None:
    _noted.clear()


recorder.at_start.append(_forget)


def install() -> None:
    """Put the notes in place. Called once, before the program starts."""
    first_hook = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            if recorder.on:
                note_exception(error)
        except Exception:
            recorder.fault("excepthook")
        first_hook(kind, error, trace)

    sys.excepthook = excepthook
    real_exit, real_os_exit = sys.exit, os._exit

    def exit(status: object = None, /) -> NoReturn:
        try:
            # In another thread it ends that thread alone.
            if threading.current_thread() is threading.main_thread():
                _note_exit(status, 2)
        except Exception:
            recorder.fault("sys.exit")
        real_exit(status)  # type: ignore[arg-type]

    def _exit(status: int) -> NoReturn:
        try:
            _note_exit(status, 2)
        except Exception:
            recorder.fault("os._exit")
        real_os_exit(status)

    exit.__doc__, exit.__name__, exit.__qualname__, exit.__module__ = real_exit.__doc__, "exit", "exit", "sys"
    _exit.__doc__, _exit.__module__ = real_os_exit.__doc__, "posix"
    sys.exit = exit
    os._exit = _exit
    atexit.register(_at_exit)


def _at_exit() -> None:
    try:
        if not recorder.on:
            return
        last = getattr(sys, "last_value", None)
        if isinstance(last, BaseException):
            note_exception(last)
        _write("finish")
        _let_gloo_come_to_rest()
    except Exception:
        recorder.fault("atexit")


# With torch 2.13 one of twelve finished gloo jobs dies at its very end: gloo's own thread asks for the GIL while
# Python shuts down, and C++ answers with std::terminate ("terminate called without an active exception"). Time in
# which the GIL is free lets that thread finish first; 0 of 16 died after 50 ms, 4 of 48 without.
_GLOO_REST = 0.05


def _let_gloo_come_to_rest() -> None:
    from rankcall.record.collectives import used_gloo

    if used_gloo():
        time.sleep(_GLOO_REST)
