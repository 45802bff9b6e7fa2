"""What a stack dump says of one process, whichever tool wrote it: its threads and their frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rankcall.diagnose.readers.native_names import is_interpreter, is_unnamed, native_name
from rankcall.snapshot import Frame

# Dumps are untrusted: what goes beyond these is left out. Of a deep stack the innermost frames are kept.
MOST_FRAMES = 200
MOST_THREADS = 500
LONGEST_TEXT = 500  # of a file, a function, a name

# rank: trains. loader-worker: a DataLoader's. launcher: torchrun's agent, a parent of spawned ranks. other: helpers.
Role = Literal["rank", "loader-worker", "launcher", "other"]

_NATIVE = "<native "
_LARGEST_ID = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class StackThread:
    """One thread. `tid` is the native thread id where the dump tells it, else what it calls the thread. `state` is the
    tool's word: "active", "idle", "active+gil", "waiting for the GIL", "" when it says nothing. `frames` are innermost
    first; `native` says that native ones are among them (see `is_native`)."""

    tid: int
    name: str = ""
    main: bool = False
    state: str = ""
    frames: tuple[Frame, ...] = ()
    native: bool = False


@dataclass(frozen=True, slots=True)
class StackSample:
    """One look at one process. `rank` is None where nothing in the dump or its name says it; for a process that a rank
    started (`role`), it is the rank of its parent. `parent` is the parent's pid, where the dump tells it."""

    rank: int | None
    host: str
    pid: int | None
    command: str
    threads: tuple[StackThread, ...]
    local_rank: int | None = None
    parent: int | None = None
    role: Role = "rank"

    @property
    def main(self) -> StackThread | None:
        """The main thread, if it is known."""
        return next((thread for thread in self.threads if thread.main), None)

    @property
    def has_python(self) -> bool:
        """Whether any thread shows Python frames; gdb alone shows native ones only."""
        return any(python_frames(thread.frames) for thread in self.threads)


def native_frame(function: str, place: str, line: int = 0) -> Frame:
    """A frame of native code. Its file is written `<native libtorch_cpu.so>`, which no reader takes for a script."""
    return plain_frame(f"{_NATIVE}{place.rpartition('/')[2][:LONGEST_TEXT]}>", line, native_name(function))


def plain_frame(file: str, line: int, function: str) -> Frame:
    """A frame whose texts can be written anywhere: JSON may spell lone surrogates, which no file takes."""
    return Frame(_writable(file[:LONGEST_TEXT]), line, _writable(function[:LONGEST_TEXT]))


def _writable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def is_native(frame: Frame) -> bool:
    return frame.file.startswith(_NATIVE)


def python_frames(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """The frames without the native ones, in their order."""
    return tuple(frame for frame in frames if not is_native(frame))


def telling_frames(frames: Iterable[Frame]) -> list[Frame]:
    """The frames without those of the interpreter itself and those without a name, MOST_FRAMES at most."""
    kept = []
    for frame in frames:
        if is_native(frame) and (
            is_unnamed(frame.function) or is_interpreter(frame.function, frame.file[len(_NATIVE) : -1])
        ):
            continue
        kept.append(frame)
        if len(kept) >= MOST_FRAMES:
            break
    return kept


def made_thread(
    tid: int, frames: Sequence[Frame], *, name: str = "", main: bool = False, state: str = ""
) -> StackThread:
    """A thread from its frames, innermost first, with everything bounded."""
    kept = tuple(telling_frames(frames))
    return StackThread(
        min(max(tid, 0), _LARGEST_ID),
        _writable(name[:LONGEST_TEXT]),
        main,
        state[:40],
        kept,
        any(is_native(frame) for frame in kept),
    )


def with_main(threads: Sequence[StackThread], main: int) -> tuple[StackThread, ...]:
    """The threads, the one at index `main` marked as the main one and standing first; the others keep their order."""
    if not 0 <= main < len(threads):
        return tuple(threads)
    chosen = threads[main]
    first = StackThread(chosen.tid, chosen.name, True, chosen.state, chosen.frames, chosen.native)
    return (first, *threads[:main], *threads[main + 1 :])
