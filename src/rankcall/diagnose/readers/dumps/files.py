"""Which files are flight-recorder dumps, whose they are, and which of them belong together.

A dump says neither its rank nor when it was written (NCCL's writer names the file after the rank), so the name, the
groups it speaks of and the clock have to tell.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankcall.diagnose.readers.dumps.pool import Source
from rankcall.diagnose.readers.dumps.reduce import MOST_MEMBERS
from rankcall.diagnose.readers.dumps.rings import Ring

MOST_FILES = 400_000
_DEEPEST = 8
_SNIFFED = 4096
_FAR_BEYOND = 8
_LARGEST_LIST = 4096  # ranks: beyond it, a member list says too little of one rank to be gone through
_MARKS = (b'"entries"', b'"pg_config"', b'"pg_status"', b'"nccl_comm_state"', b'"comm_lib_version"')
_SUFFIXES = re.compile(r"\.(pkl|pickle|json|bin|dump|trace|fr|pt|txt)$", re.IGNORECASE)
_RANK = re.compile(r"(?:global[_-]?)?rank[_\-.=]?(\d{1,7})", re.IGNORECASE)
_END = re.compile(r"(\d{1,7})$")
_BEGIN = re.compile(r"^(\d{1,7})(?=\D|$)")


@dataclass(frozen=True, slots=True)
class Named:
    """A file with the rank that its name gives; `series` is equal for files that differ in the rank alone."""

    source: Source
    rank: int | None
    series: str


def regular_files(paths: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """All regular files under these paths, in order, links to files followed and links to folders not."""
    count = 0
    seen: set[tuple[int, int]] = set()
    for path in paths:
        for found in _walk(path):
            try:
                about = found.stat()
            except (OSError, ValueError):
                continue
            if not stat.S_ISREG(about.st_mode) or (about.st_dev, about.st_ino) in seen:
                continue
            seen.add((about.st_dev, about.st_ino))
            count += 1
            if count > MOST_FILES:
                return
            yield found, about


def _walk(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    base = len(path.parts)
    for folder, folders, names in os.walk(path):
        here = Path(folder)
        folders.sort()
        if len(here.parts) - base >= _DEEPEST:
            folders.clear()
        for name in sorted(names):
            yield here / name


def looks_like_dump(path: Path) -> bool:
    """A pickle of a dict, or JSON with a dump's keys; judged by the first bytes alone."""
    start = first_bytes(path, _SNIFFED)
    if start[:1] == b"\x80":
        return True
    return start.lstrip()[:1] == b"{" and any(mark in start for mark in _MARKS)


def first_bytes(path: Path, most: int) -> bytes:
    """The beginning of a regular file; nothing of what cannot be read or could block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    try:
        about = os.fstat(descriptor)
        # Files of the kernel say that they are empty, and block when they are read.
        return os.read(descriptor, most) if stat.S_ISREG(about.st_mode) and about.st_size else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def readable(path: os.PathLike[str] | str) -> str:
    """A path as text that can be written anywhere; bytes that are no text are spelled."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def named(path: Path, about: os.stat_result) -> Named:
    """The rank in the file's name, else in its folder's."""
    source = Source(path, about.st_size, about.st_mtime)
    folder_name, _, name = os.fspath(path).rpartition("/")
    stem = _SUFFIXES.sub("", name)
    match = _RANK.search(stem) or _END.search(stem) or _BEGIN.search(stem)
    if match is not None and int(match.group(1)) < MOST_MEMBERS:
        series = f"{folder_name}/{stem[: match.start(1)]}*{stem[match.end(1) :]}"
        return Named(source, int(match.group(1)), series)
    folder = _RANK.search(path.parent.name) or _END.search(path.parent.name)
    if folder is not None and int(folder.group(1)) < MOST_MEMBERS:
        return Named(source, int(folder.group(1)), f"{path.parent.parent}/*/{path.name}")
    return Named(source, None, str(path.parent))


@dataclass(frozen=True, slots=True)
class Placed:
    """A ring with its rank. `older`: other ranks' rings are of a later time; what this rank did then is not known."""

    rank: int
    ring: Ring
    older: bool


def place(read: Sequence[tuple[Named, Ring]], shared_members: Sequence[Sequence[tuple[int, int]]]
          ) -> tuple[list[Placed], list[str]]:  # fmt: skip
    """Give every ring a rank and choose the newest of those that one rank left. Also says, in words, what had to be
    guessed or was set aside."""
    ranks, notes = _ranks(_believable(read, shared_members), shared_members)
    chosen: dict[tuple[int, str], tuple[Named, Ring]] = {}
    set_aside = 0
    for (name, ring), rank in zip(read, ranks, strict=True):
        key = (rank, _recorder(ring))
        other = chosen.get(key)
        if other is not None and _age(name, ring)[0] != _age(*other)[0]:
            set_aside += 1  # not the same moment in another form
        if other is None or _age(name, ring) > _age(*other):
            chosen[key] = (name, ring)
    if set_aside:
        notes.append(f"{set_aside} older {'dump was' if set_aside == 1 else 'dumps were'} set aside: the newest of "
                     "each rank counts.")  # fmt: skip
    placed = []
    newest = _series_ages(chosen.values()) if set_aside else {}
    for (rank, recorder), (name, ring) in sorted(chosen.items(), key=lambda item: item[0]):
        latest = newest.get(recorder)
        older = latest is not None and name.series != latest[0] and (ring.newest or 0.0) < latest[1] - 1.0
        placed.append(Placed(rank, ring, older))
    return placed, notes


def _believable(
    read: Sequence[tuple[Named, Ring]], shared_members: Sequence[Sequence[tuple[int, int]]]
) -> list[tuple[Named, Ring]]:
    """Names whose numbers cannot be ranks count as nameless: two files of one series with one number (the number of a
    GPU, say), or numbers far beyond the ranks there can be (process ids)."""
    uses = Counter((name.series, name.rank, _recorder(ring)) for name, ring in read if name.rank is not None)
    doubled = {series for (series, _, _), count in uses.items() if count > 1}
    world = max((runs[-1][1] + 1 for runs in shared_members if runs), default=0)
    most = world or _FAR_BEYOND * (len(read) + _FAR_BEYOND)
    found = []
    for name, ring in read:
        believed = name.series not in doubled and (name.rank is None or name.rank < most)
        found.append((name if believed else Named(name.source, None, name.series), ring))
    return found


def _age(name: Named, ring: Ring) -> tuple[float, float]:
    return (ring.newest or 0.0, name.source.written)


def _recorder(ring: Ring) -> str:
    """torch has one recorder for the device's backend and one for the CPU's; each writes dumps of its own."""
    return "gloo" if ring.groups and all(group.backend == "gloo" for group in ring.groups) else "device"


def _series_ages(chosen: Iterable[tuple[Named, Ring]]) -> dict[str, tuple[str, float]]:
    """By recorder: the series of the newest dumps, and the time of the oldest of them."""
    by_series: dict[tuple[str, str], list[float]] = {}
    for name, ring in chosen:
        by_series.setdefault((_recorder(ring), name.series), []).append(ring.newest or 0.0)
    found: dict[str, tuple[str, float, float]] = {}
    for (recorder, series), times in by_series.items():
        if recorder not in found or max(times) > found[recorder][2]:
            found[recorder] = (series, min(times), max(times))
    return {recorder: (series, oldest) for recorder, (series, oldest, _) in found.items()}


def _ranks(read: Sequence[tuple[Named, Ring]], shared_members: Sequence[Sequence[tuple[int, int]]]
           ) -> tuple[list[int], list[str]]:  # fmt: skip
    notes: list[str] = []
    found: list[int | None] = []
    corrected = 0
    sets: dict[int, frozenset[int]] = {}
    for name, ring in read:
        rank = ring.rank if ring.rank is not None else name.rank
        if ring.rank is None and not _is_in_all(rank, ring, shared_members, sets):
            possible = _possible(ring, shared_members)
            if possible is not None and len(possible) == 1:
                corrected += rank is not None
                rank = next(iter(possible))
        found.append(rank)
    if corrected:
        notes.append(f"{corrected} file names hold another number than the rank that the groups in them show; the "
                     "groups count.")  # fmt: skip
    used = {rank for rank in found if rank is not None}
    free = (rank for rank in range(len(read) + len(used)) if rank not in used)
    if None in found:
        notes.append("Some files name no rank: they are numbered in the order of their names.")
    return [next(free) if rank is None else rank for rank in found], notes


def _is_in_all(
    rank: int | None, ring: Ring, shared_members: Sequence[Sequence[tuple[int, int]]], sets: dict[int, frozenset[int]]
) -> bool:
    """Whether the rank is a member of every group that the ring has operations of."""
    if rank is None:
        return False
    lists = {name: members for name, _, members in ring.config}
    for number in {lists[group.name] for group in ring.groups if group.name in lists}:
        runs = shared_members[number]
        if not runs or (len(runs) == 1 and runs[0][0] <= rank <= runs[0][1]):
            continue
        if number not in sets:
            if _size(runs) > _LARGEST_LIST:
                continue
            sets[number] = frozenset(rank for first, last in runs for rank in range(first, last + 1))
        if rank not in sets[number]:
            return False
    return True


def _possible(ring: Ring, shared_members: Sequence[Sequence[tuple[int, int]]]) -> set[int] | None:
    """The ranks that are members of every group the ring has operations of; None where the dump does not tell."""
    lists = {name: members for name, _, members in ring.config}
    used = {lists[group.name] for group in ring.groups if group.name in lists}
    small = sorted((runs for number in used if (runs := shared_members[number])), key=_size)
    if len(small) < 2 or _size(small[0]) > _LARGEST_LIST:
        return None
    possible = {rank for first, last in small[0] for rank in range(first, last + 1)}
    for runs in small[1:]:
        possible = {rank for rank in possible if any(first <= rank <= last for first, last in runs)}
        if len(possible) == 1:
            break
    return possible


def _size(runs: Sequence[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in runs)
