"""What a job left behind, whoever started it -> one snapshot: flight-recorder dumps, stacks, or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankcall.diagnose.readers.dumps.files import Named, first_bytes, looks_like_dump, named, readable, regular_files
from rankcall.diagnose.readers.dumps.pool import Source
from rankcall.diagnose.readers.dumps.read import read_dumps
from rankcall.diagnose.readers.joined_stacks import with_stacks
from rankcall.diagnose.readers.stack_files import one_per_process, stacks_from_text
from rankcall.diagnose.readers.stack_sample import StackSample
from rankcall.errors import RankcallError
from rankcall.snapshot import Snapshot

LARGEST_TEXT = 256 << 20  # bytes; stacks of thousands of ranks in one file are smaller
_SNIFFED = 4096

# progress(done, all)
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class LeftFiles:
    """The snapshot, the files that could not be read with the reason of each, and how many were something else."""

    snapshot: Snapshot
    unreadable: tuple[tuple[str, str], ...]
    others: int


def read_left_files(
    paths: Sequence[Path],
    *,
    world_size: int | None = None,
    whole_rings: bool = False,
    progress: Progress | None = None,
) -> LeftFiles:
    """Read every dump and every stack under these paths, folders with all that is in them.

    `world_size`: how many ranks the job had, where the files do not say. `whole_rings` keeps every event, for a
    timeline. Raises RankcallError when a path does not exist or nothing could be read.
    """
    for path in paths:
        if not _exists(path):
            raise RankcallError(
                f"{readable(path)} does not exist; expected flight-recorder dumps, stacks, or the folder of a run."
            )
    dumps: list[Named] = []
    rest: list[Named] = []
    known: set[str] = set()
    for path, about in regular_files(paths):
        file = named(path, about)
        # Of a numbered series the first dump speaks for the others: they are read in any case.
        if file.series in known or looks_like_dump(path):
            dumps.append(file)
            if file.rank is not None:
                known.add(file.series)
        else:
            rest.append(file)
    # An empty or damaged file among dumps was meant to be one: it is read, and what is wrong with it is said.
    series = {file.series for file in dumps if file.rank is not None}
    dumps += [file for file in rest if file.series in series]
    samples, others = _stacks([file.source for file in rest if file.series not in series])
    read = read_dumps(
        dumps,
        world_size=world_size,
        whole_rings=whole_rings,
        progress=(lambda done: progress(done, len(dumps))) if progress is not None else None,
    )
    unreadable = tuple((readable(one.path), one.reason) for one in read.unreadable)
    if read.snapshot is None and not samples:
        raise RankcallError(_nothing(paths, unreadable, others))
    snapshot = with_stacks(read.snapshot, samples, world_size) if samples else read.snapshot
    assert snapshot is not None
    return LeftFiles(snapshot, unreadable, others)


def _stacks(files: Sequence[Source]) -> tuple[list[StackSample], int]:
    """The samples of all these files, one for each process, and how many of the files hold none."""
    samples: list[StackSample] = []
    others = 0
    for file in files:
        found = _samples(file) if file.size <= LARGEST_TEXT else []
        samples += found
        others += not found
    return one_per_process(samples), others


def _samples(file: Source) -> list[StackSample]:
    if b"\0" in first_bytes(file.path, _SNIFFED):
        return []
    return stacks_from_text(first_bytes(file.path, LARGEST_TEXT), readable(file.path))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False  # too long for a name, or not to be looked at


def _nothing(paths: Sequence[Path], unreadable: Sequence[tuple[str, str]], others: int) -> str:
    where = ", ".join(readable(path) for path in paths[:3]) + (" and others" if len(paths) > 3 else "")
    if unreadable:
        name, reason = unreadable[0]
        more = f" (and {len(unreadable) - 1} more)" if len(unreadable) > 1 else ""
        return f"nothing in {where} could be read: {name}: {reason}{more}."
    if len(paths) == 1 and paths[0].is_file():
        return f"{where} is neither a flight-recorder dump nor a stack, nor anything that rankcall wrote."
    if len(paths) == 1:
        where += " is not the folder of a run, and"
    found = f"none of its {others} files is" if others else "it holds no file that is"
    return (
        f"{where} {found} a flight-recorder dump or a stack. NCCL writes dumps to TORCH_FR_DUMP_TEMP_FILE (or "
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE) followed by the rank."
    )
