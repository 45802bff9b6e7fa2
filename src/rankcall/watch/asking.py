"""Asks a live process: its stacks by signal, its flight recorder through its FIFO. All processes are asked at once
and the answers read until a time limit, so that the slowest costs the limit once."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from rankcall.diagnose.readers.faulthandler_text import fatal_stack, threads_from_faulthandler
from rankcall.diagnose.readers.flight_recorder import Dump, dump_from_json
from rankcall.diagnose.readers.py_spy import threads_from_py_spy
from rankcall.record.dump import answer_name, fifo_name
from rankcall.record.stacks import stack_name, stack_signal
from rankcall.snapshot import Frame
from rankcall.watch.processes import handles_stack_signal, read_stat

_PAUSE = 0.005
_MOST_STACK_TEXT = 1 << 20
_MOST_DUMP = 64 << 20
_MOST_PY_SPY = 16  # processes of one machine: each is a program of its own for about 20 ms

Asked = tuple[int, int]  # pid and start time in ticks


def ask_stacks(folder: Path, processes: Iterable[Asked], limit: float) -> dict[Asked, tuple[tuple[Frame, ...], ...]]:
    """The stacks of each process's threads, the main thread's first; what does not answer in time is left out.

    A process is signalled only if it is the one meant (start time) and has a handler.
    """
    waiting: dict[Asked, tuple[Path, int]] = {}
    for pid, start in processes:
        stat = read_stat(pid)
        path = folder / stack_name(pid, start)
        if stat is None or stat.start != start or stat.state in ("zombie", "gone", "stopped", "traced"):
            continue
        if not path.exists() or not handles_stack_signal(pid):
            continue
        before = path.stat().st_size
        with contextlib.suppress(OSError):
            os.kill(pid, stack_signal())
            waiting[pid, start] = (path, before)
    return _collect_stacks(waiting, limit)


def _collect_stacks(waiting: dict[Asked, tuple[Path, int]], limit: float) -> dict[Asked, tuple[tuple[Frame, ...], ...]]:
    found: dict[Asked, tuple[tuple[Frame, ...], ...]] = {}
    sizes: dict[Asked, int] = {}
    end = time.monotonic() + limit
    while waiting and time.monotonic() < end:
        time.sleep(_PAUSE)
        for asked, (path, before) in list(waiting.items()):
            size = path.stat().st_size if path.exists() else 0
            if size > before and sizes.get(asked) == size:  # it has stopped growing: written whole
                found[asked] = _stacks_of(path, before)
                del waiting[asked]
            sizes[asked] = size
    for asked, (path, before) in waiting.items():
        if sizes.get(asked, 0) > before:
            found[asked] = _stacks_of(path, before)
    return found


def _stacks_of(path: Path, at: int) -> tuple[tuple[Frame, ...], ...]:
    try:
        with path.open("rb") as file:
            file.seek(at)
            text = file.read(_MOST_STACK_TEXT).decode("utf-8", "replace")
    except OSError:
        return ()
    threads = [frames for _, frames in threads_from_faulthandler(text)]
    # faulthandler lists threads newest first, so the main thread is the last one.
    return tuple(reversed(threads))


def stack_of_the_dead(folder: Path, asked: Asked) -> tuple[Frame, ...]:
    """The stack that a process left when a fatal signal ended it, innermost first; empty if there is none."""
    path = folder / stack_name(*asked)
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_STACK_TEXT))
            return fatal_stack(file.read(_MOST_STACK_TEXT).decode("utf-8", "replace"))
    except OSError:
        return ()


def ask_py_spy(processes: Iterable[Asked], limit: float) -> dict[Asked, tuple[tuple[Frame, ...], ...]]:
    """Stacks read from outside, without the process's help: of those that are stopped, or have no handler of ours.

    The main thread's comes first. Reading does not stop the process (`--nonblocking`). Empty without py-spy or
    without the right to look (ptrace), which containers and clusters often deny.
    """
    program = _py_spy()
    running: dict[Asked, subprocess.Popen[bytes]] = {}
    if program is None:
        return {}
    for pid, start in list(processes)[:_MOST_PY_SPY]:
        stat = read_stat(pid)
        if stat is None or stat.start != start or stat.state in ("zombie", "gone"):
            continue
        command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
        with contextlib.suppress(OSError):
            running[pid, start] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
    end = time.monotonic() + limit
    found: dict[Asked, tuple[tuple[Frame, ...], ...]] = {}
    for asked, process in running.items():
        try:
            data, _ = process.communicate(timeout=max(0.01, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            continue
        threads = sorted(threads_from_py_spy(data[:_MOST_STACK_TEXT]), key=lambda thread: thread[0] != asked[0])
        if threads:
            found[asked] = tuple(frames for _, _, frames in threads)
    return found


@functools.cache
def _py_spy() -> str | None:
    """The py-spy beside this Python, else on the PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


def ask_dumps(folder: Path, processes: Iterable[Asked], limit: float) -> dict[Asked, Dump]:
    """The flight recorder of each process that answers in time."""
    waiting: dict[Asked, tuple[Path, bytes]] = {}
    token = f"{time.monotonic_ns()}".encode()
    for pid, start in processes:
        stat = read_stat(pid)
        if stat is None or stat.start != start or stat.state in ("zombie", "gone", "stopped", "traced"):
            continue
        try:
            descriptor = os.open(folder / fifo_name(pid, start), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            os.write(descriptor, token + b"\n")
            waiting[pid, start] = (folder / answer_name(pid, start), token)
        except OSError:
            pass
        finally:
            os.close(descriptor)
    found: dict[Asked, Dump] = {}
    end = time.monotonic() + limit
    while waiting and time.monotonic() < end:
        time.sleep(_PAUSE)
        for asked, (path, wanted) in list(waiting.items()):
            data = _answer(path, wanted)
            if data is not None:
                del waiting[asked]
                with contextlib.suppress(msgspec.DecodeError):
                    found[asked] = dump_from_json(data)
    return found


def _answer(path: Path, token: bytes) -> bytes | None:
    try:
        if path.stat().st_size > _MOST_DUMP:
            return None
        head, _, data = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return data if head == token else None
