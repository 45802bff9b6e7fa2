"""The stacks of all ranks merged: a call-path prefix tree whose nodes carry rank sets, and the classes of equal stacks.

A few hundred stacks that say the same become one line, and the rank that stands elsewhere stands out. Line numbers may
differ a little in the same function (a loop that goes round), so stacks are first compared line by line; where that
gives too many classes, by function; and at last by the user's own functions alone. Pure, and linear in all frames.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rankcall.diagnose.readers.stack_phases import phase_of
from rankcall.diagnose.readers.stack_places import is_user, last_name
from rankcall.diagnose.readers.stack_sample import is_native, python_frames
from rankcall.diagnose.readers.stack_waits import wait_from_stack
from rankcall.snapshot import Frame, Snapshot, Thread

Level = Literal["line", "function", "user"]

_LEVELS: tuple[Level, ...] = ("line", "function", "user")  # from the finest comparison to the coarsest

FEW_CLASSES = 8  # what a person takes in at a glance; more are compared more coarsely
MOST_CLASSES = 50  # in the result, however coarse the comparison
_MOST_FRAMES = 200
_MOST_RUNS = 64
_MOST_LINES = 8
# One class must hold more than half of the ranks, and an odd one no more than this share of it.
_SMALL = 0.25

_PACKAGE = re.compile(r"^.*/(?:site|dist)-packages/|^.*/lib(?:64)?/python3[^/]*/")
_OURS = "/rankcall/record/"
# Native frames that say how a thread sleeps, not in what.
_PRIMITIVES = re.compile(
    r"^_*(?:futex|pthread|GI_|lll_lock|sem_|new_sem|do_futex|poll|ppoll|select|epoll|nanosleep|clock_nanosleep)"
    r"|^std::(?:condition_variable|_Function_handler|thread)|^execute_native_thread_routine|^<signal handler called>"
)


@dataclass(frozen=True, slots=True)
class RankStack:
    """One stack of one rank, innermost first. `thread` is "" for the main thread. `wait` is the operation that it waits
    in and `phase` what it is doing, where that is known better than from the stack."""

    rank: int
    frames: tuple[Frame, ...]
    thread: str = ""
    wait: str = ""
    phase: str = ""


@dataclass(slots=True)
class _Class:
    """Stacks that are equal at the level of comparison. `path`, the first one's, is outermost first; `lines` are those
    that the others have at the same places."""

    thread: str
    path: tuple[Frame, ...]
    keys: tuple[object, ...]
    lines: list[set[int]]
    stacks: list[RankStack]
    doing: tuple[str, str] | None = None  # wait and phase, where they were part of the comparison
    odd: bool = False

    @property
    def ranks(self) -> list[int]:
        return sorted({stack.rank for stack in self.stacks})


def rank_stacks(snapshot: Snapshot) -> list[RankStack]:
    """The stacks of a snapshot's ranks: of the main threads, and of the others that wait in an operation."""
    found = []
    for process in snapshot.processes:
        if process.rank is None:
            continue
        for thread in process.threads:
            if thread.stack and (thread.main or thread.wait is not None):
                found.append(_of_thread(process.rank, thread))
    return found


def _of_thread(rank: int, thread: Thread) -> RankStack:
    wait = thread.wait
    return RankStack(
        rank,
        thread.stack,
        "" if thread.main else thread.name or "another thread",
        (wait.outer or wait.op or wait.kind) if wait is not None else "",
        thread.phase if thread.phase != "idle" else "",
    )


def merge_stacks(
    stacks: Iterable[RankStack], sources: Mapping[str, str] | None = None, level: Level | None = None
) -> dict[str, object] | None:
    """Merge the stacks; None when there are none. `level` is found from the stacks when it is not given; `sources` are
    the texts by path that came with them: what is in there is the user's own.

    The result is JSON: `classes`, largest first and the odd ones marked, and `tree`, the calls of these classes from
    the outermost on, in preorder with `depth`; `left_out` counts classes beyond MOST_CLASSES and their ranks.
    """
    usable = [(stack, path) for stack, path in _paths(list(stacks)) if path]
    if not usable:
        return None
    own = frozenset(sources or ())
    used, classes = _classes(usable, own, level)
    _mark_odd(usable, own, used, classes)
    chosen = _chosen(classes)
    left_out = [one for one in classes if not any(one is other for other in chosen)]
    return {
        "ranks": len({stack.rank for stack, _ in usable}),
        "level": used,
        "classes": [_class_fields(one, own) for one in chosen],
        "tree": _tree(chosen, own),
        "left_out": {"classes": len(left_out), "ranks": len({rank for one in left_out for rank in one.ranks})},
    }


# --- paths ------------------------------------------------------------------------------------------------------


def _paths(stacks: Sequence[RankStack]) -> Iterable[tuple[RankStack, tuple[Frame, ...]]]:
    """Each stack with its frames outermost first, without those that say nothing. Dumps of two tools name one file by
    a short and by a whole path: where it can only be that one, the whole path is taken for both. Native frames only
    count where all stacks have them."""
    shows_native = {any(is_native(frame) for frame in stack.frames) for stack in stacks}
    whole = _whole_paths(frame.file for stack in stacks for frame in stack.frames[:_MOST_FRAMES])
    for stack in stacks:
        path = []
        native_counts = len(shows_native) == 1 or not python_frames(stack.frames)
        for frame in reversed(stack.frames[:_MOST_FRAMES]):
            if is_native(frame) and (not native_counts or _PRIMITIVES.match(frame.function)):
                continue
            if _OURS in frame.file:
                continue
            file = whole.get(frame.file)
            path.append(frame if file is None else Frame(file, frame.line, frame.function))
        # A thread that does nothing but sleep, seen from outside Python, still stands somewhere.
        yield stack, tuple(path) or tuple(reversed(stack.frames[:_MOST_FRAMES]))


def _whole_paths(files: Iterable[str]) -> dict[str, str]:
    """Short path -> the only whole path that ends in it."""
    short: set[str] = set()
    by_name: dict[str, set[str]] = {}
    for file in set(files):
        if file.startswith("/"):
            by_name.setdefault(file.rpartition("/")[2], set()).add(file)
        elif not file.startswith(("<", "…")):
            short.add(file)
    found = {}
    for file in short:
        candidates = [path for path in by_name.get(file.rpartition("/")[2], ()) if path.endswith(f"/{file}")]
        if len(candidates) == 1:
            found[file] = candidates[0]
    return found


def _is_own(file: str, own: frozenset[str]) -> bool:
    return file in own or is_user(file)


def _key(frame: Frame, level: Level) -> tuple[object, ...]:
    """What two frames must share. Packages are named without the folder they are installed in, which may differ from
    host to host, and functions by their last name, since older Pythons know no more."""
    place = (_PACKAGE.sub("", frame.file), last_name(frame.function))
    return (*place, frame.line) if level == "line" else place


# --- classes ----------------------------------------------------------------------------------------------------


def _classes(
    usable: Sequence[tuple[RankStack, tuple[Frame, ...]]], own: frozenset[str], level: Level | None
) -> tuple[Level, list[_Class]]:
    """The first level that gives few classes, and the coarsest where none does."""
    levels: tuple[Level, ...] = (level,) if level is not None else _LEVELS
    used, classes = levels[0], _grouped(usable, own, levels[0])
    for coarser in levels[1:]:
        if len(classes) <= FEW_CLASSES:
            break
        used, classes = coarser, _grouped(usable, own, coarser)
    return used, classes


def _grouped(usable: Sequence[tuple[RankStack, tuple[Frame, ...]]], own: frozenset[str], level: Level) -> list[_Class]:
    known: dict[Frame, tuple[object, ...]] = {}
    doings: dict[tuple[Frame, ...], tuple[str, str]] = {}
    by_keys: dict[object, _Class] = {}
    for stack, path in usable:
        doing = None
        if level == "user":
            # Without the library's frames, what a thread does must still tell two ranks apart.
            doing = _said(stack) or doings.get(stack.frames) or doings.setdefault(stack.frames, _seen(stack.frames))
            path = tuple(frame for frame in path if _is_own(frame.file, own)) or path[-1:]
        keys = []
        for frame in path:
            key = known.get(frame)
            keys.append(known.setdefault(frame, _key(frame, level)) if key is None else key)
        together = (stack.thread, doing, tuple(keys))
        one = by_keys.get(together)
        if one is None:
            by_keys[together] = _Class(stack.thread, path, tuple(keys), [{f.line} for f in path], [stack], doing)
            continue
        one.stacks.append(stack)
        if level != "line":
            for lines, frame in zip(one.lines, path, strict=True):
                lines.add(frame.line)
    return sorted(by_keys.values(), key=lambda one: (one.thread != "", -len(one.stacks), one.stacks[0].rank))


def _mark_odd(
    usable: Sequence[tuple[RankStack, tuple[Frame, ...]]], own: frozenset[str], used: Level, classes: Sequence[_Class]
) -> None:
    """Mark the classes whose ranks stand apart from most. Where the ranks' lines differ so that no class is dominant,
    their functions may be the same: then who stands elsewhere is told from these."""
    odd = _odd_stacks(classes)
    for coarser in _LEVELS[_LEVELS.index(used) + 1 :]:
        if odd is not None:
            break
        odd = _odd_stacks(_grouped(usable, own, coarser))
    for one in classes:
        one.odd = odd is not None and all(id(stack) in odd for stack in one.stacks)


def _odd_stacks(classes: Sequence[_Class]) -> set[int] | None:
    """The identities of stacks in small classes, thread by thread; None where no class of the main threads is
    dominant, so that nobody is odd."""
    by_thread: dict[str, list[_Class]] = {}
    for one in classes:
        by_thread.setdefault(one.thread, []).append(one)
    odd: set[int] = set()
    for thread, group in by_thread.items():
        sizes = [len(one.ranks) for one in group]
        largest = max(sizes)
        if 2 * largest <= sum(sizes):
            if not thread:
                return None
            continue
        for one, size in zip(group, sizes, strict=True):
            if size < largest and size <= max(1, largest * _SMALL):
                odd |= {id(stack) for stack in one.stacks}
    return odd


def _chosen(classes: Sequence[_Class]) -> list[_Class]:
    """At most MOST_CLASSES, in their order: the largest, and the odd ones rather than the others."""
    if len(classes) <= MOST_CLASSES:
        return list(classes)
    by_weight = sorted(range(len(classes)), key=lambda at: (at != 0, not classes[at].odd, at))
    return [classes[at] for at in sorted(by_weight[:MOST_CLASSES])]


def _class_fields(one: _Class, own: frozenset[str]) -> dict[str, object]:
    ranks = one.ranks
    wait, phase = _doing(one)
    return {
        "ranks": _runs(ranks),
        "count": len(ranks),
        "odd": one.odd,
        "thread": one.thread,
        "wait": wait,
        "phase": phase,
        "frames": [
            _frame_fields(frame, lines, own)
            for frame, lines in zip(reversed(one.path), reversed(one.lines), strict=True)
        ],
    }


def _doing(one: _Class) -> tuple[str, str]:
    """The operation and phase of most of the class, else what the stack itself says."""
    if one.doing is not None:
        return one.doing
    said = Counter(doing for stack in one.stacks if (doing := _said(stack)) is not None)
    return said.most_common(1)[0][0] if said else _seen(one.stacks[0].frames)


def _said(stack: RankStack) -> tuple[str, str] | None:
    return (stack.wait, stack.phase) if stack.wait or stack.phase else None


def _seen(frames: Sequence[Frame]) -> tuple[str, str]:
    """The operation and phase that the frames show, "" for what they do not."""
    wait = wait_from_stack(frames[:_MOST_FRAMES])
    operation = (wait.outer or wait.op or wait.kind) if wait is not None else ""
    return operation, phase_of(frames[:_MOST_FRAMES], wait) or ""


def _frame_fields(frame: Frame, lines: set[int], own: frozenset[str]) -> dict[str, object]:
    """A frame; `lines` only where the stacks differ in it."""
    user = _is_own(frame.file, own)
    fields: dict[str, object] = {"file": frame.file, "line": frame.line, "function": frame.function, "user": user}
    return {**fields, "lines": sorted(lines)[:_MOST_LINES]} if len(lines) > 1 else fields


def _runs(ranks: Sequence[int]) -> str:
    """`0-36, 38-63`; after _MOST_RUNS runs the rest is counted."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:_MOST_RUNS]]
    left = sum(last - first + 1 for first, last in runs[_MOST_RUNS:])
    return ", ".join(shown) + (f" and {left} more" if left else "")


# --- tree -------------------------------------------------------------------------------------------------------


class _Node:
    """A call, and the classes that came through it."""

    __slots__ = ("children", "classes", "ends", "frame", "lines", "thread")

    def __init__(self, frame: Frame, thread: str) -> None:
        self.frame = frame
        self.thread = thread
        self.lines: set[int] = set()
        self.children: dict[object, _Node] = {}
        self.classes: list[int] = []
        self.ends: list[int] = []


def _tree(classes: Sequence[_Class], own: frozenset[str]) -> list[dict[str, object]]:
    """The nodes in preorder: larger branches first, `depth` from 0, `ends` the indexes of classes that end there."""
    root = _Node(Frame("", 0), "")
    for index, one in enumerate(classes):
        node = root
        for depth, (frame, key) in enumerate(zip(one.path, one.keys, strict=True)):
            # Another thread's calls are no branch of the main thread's.
            step: object = (one.thread, key) if depth == 0 else key
            node = node.children.setdefault(step, _Node(frame, one.thread))
            node.lines |= one.lines[depth]
            node.classes.append(index)
        node.ends.append(index)
    rows: list[dict[str, object]] = []
    ranks = functools.cache(functools.partial(_ranks_of, classes))
    waiting = [(child, 0) for child in _by_size(root, classes)]
    while waiting:
        node, depth = waiting.pop()
        rows.append(_node_fields(node, depth, ranks(tuple(node.classes)), own))
        waiting += [(child, depth + 1) for child in _by_size(node, classes)]
    return rows


def _by_size(node: _Node, classes: Sequence[_Class]) -> list[_Node]:
    """The children, the largest last: a stack gives it out first."""
    return sorted(
        node.children.values(),
        key=lambda child: (sum(len(classes[at].stacks) for at in child.classes), -child.classes[0]),
    )


def _ranks_of(classes: Sequence[_Class], indexes: Sequence[int]) -> dict[str, object]:
    """Whose call it is. The calls of a long chain have the same classes, so this is found once for them."""
    ranks = sorted({rank for at in indexes for rank in classes[at].ranks})
    return {"ranks": _runs(ranks), "count": len(ranks), "odd": all(classes[at].odd for at in indexes)}


def _node_fields(node: _Node, depth: int, ranks: Mapping[str, object], own: frozenset[str]) -> dict[str, object]:
    fields: dict[str, object] = {"depth": depth, **_frame_fields(node.frame, node.lines, own), **ranks}
    if node.ends:
        fields["ends"] = node.ends
    if depth == 0 and node.thread:
        fields["thread"] = node.thread
    return fields
