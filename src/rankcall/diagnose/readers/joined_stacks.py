"""Stacks of a job's ranks, beside its dumps or alone -> the snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from rankcall.diagnose.readers.stack_sample import StackSample
from rankcall.diagnose.readers.stack_threads import snapshot_threads
from rankcall.snapshot import Child, Frame, Group, Process, Snapshot, Thread, Wait

STABLE_S = 1.0  # a stack that somebody bothered to take is of a job that stood still


def with_stacks(snapshot: Snapshot | None, samples: Sequence[StackSample], world_size: int | None) -> Snapshot:
    """Add what the stacks show to the snapshot of the dumps, or make one of the stacks alone.

    A dump knows the operation and its number, a stack the line: where both speak of a wait, the dump's counts. Samples
    without a rank are numbered in their order only where none has one.
    """
    notes = list(snapshot.notes) if snapshot is not None else []
    ranks = [sample for sample in samples if sample.role == "rank"]
    by_rank = _numbered(ranks, snapshot, notes)
    known = {process.claimed_rank: process for process in snapshot.processes} if snapshot is not None else {}
    largest = max([*by_rank, *(rank for rank in known if rank is not None), -1]) + 1
    size = max(world_size or 0, largest, (snapshot.world_size or 0) if snapshot is not None else 0)
    group = None if snapshot is not None else _everyone(size, by_rank)
    processes = dict(known)
    for rank, sample in by_rank.items():
        children = tuple(_child(other) for other in samples if _belongs(other, sample, rank))
        processes[rank] = _joined(known.get(rank), sample, rank, size, group, children)
    ordered = tuple(process for _, process in sorted(processes.items(), key=lambda item: item[0] or 0))
    if snapshot is not None:
        return msgspec.structs.replace(snapshot, processes=ordered, world_size=size, notes=tuple(notes))
    return Snapshot(
        taken_at=0.0,
        origin="files",
        world_size=size,
        stalled=True,
        processes=ordered,
        notes=tuple(notes),
    )


def _numbered(samples: Sequence[StackSample], snapshot: Snapshot | None, notes: list[str]) -> dict[int, StackSample]:
    if snapshot is None and samples and all(sample.rank is None for sample in samples):
        notes.append("The stacks name no rank: they are numbered in their order.")
        return dict(enumerate(samples))
    nameless = sum(1 for sample in samples if sample.rank is None)
    if nameless:
        notes.append(f"{nameless} of the stacks name no rank, and are left out: put the rank into the file's name.")
    return {sample.rank: sample for sample in samples if sample.rank is not None}


def _everyone(size: int, by_rank: dict[int, StackSample]) -> Group:
    """Nothing tells the groups: the ranks are taken for one."""
    native = any("ProcessGroupNCCL" in frame.function or "nccl" in frame.file for sample in by_rank.values()
                 for thread in sample.threads for frame in thread.frames)  # fmt: skip
    return Group(key=f"0-{size - 1}#0", description="default_pg", backend="nccl" if native else "",
                 members=tuple(range(size)))  # fmt: skip


def _belongs(other: StackSample, sample: StackSample, rank: int) -> bool:
    if other.role != "loader-worker":
        return False
    return other.parent == sample.pid if other.parent is not None and sample.pid is not None else other.rank == rank


def _child(sample: StackSample) -> Child:
    main = sample.main or next(iter(sample.threads), None)
    stack = main.frames if main is not None else ()
    return Child(pid=sample.pid or 0, kind="loader-worker", state="unknown", stack=stack)


def _joined(
    process: Process | None,
    sample: StackSample,
    rank: int,
    size: int,
    group: Group | None,
    children: tuple[Child, ...],
) -> Process:
    threads = tuple(msgspec.structs.replace(thread, stable_for=STABLE_S) for thread in snapshot_threads(sample))
    if process is None:
        return Process(
            host=sample.host, pid=sample.pid or 0, claimed_rank=rank, local_rank=sample.local_rank, world_size=size,
            recorded=False, initialized=_initialized(threads), threads=threads,
            groups=(group,) if group is not None else (), children=children,
            backend=group.backend if group is not None else "",
        )  # fmt: skip
    return msgspec.structs.replace(
        process,
        host=sample.host or process.host,
        pid=sample.pid or process.pid,
        local_rank=sample.local_rank,
        threads=_with_dump(
            threads, process.threads[0].wait if process.threads else None, _recorder_saw_all(process), _default(process)
        ),
        children=children,
    )


def _initialized(threads: Sequence[Thread]) -> Literal["entered", "done"]:
    inside = (thread.wait for thread in threads if thread.main)
    return "entered" if any(wait is not None and wait.kind == "init" for wait in inside) else "done"


def _recorder_saw_all(process: Process) -> bool:
    """NCCL's recorder sees every operation; gloo's sees neither sends nor monitored barriers."""
    return process.backend != "gloo"


def _default(process: Process) -> str:
    """The key of the default group, for a wait of which the stack does not tell the group."""
    return next((group.key for group in process.groups if group.description == "default_pg"), "")


def _with_dump(threads: tuple[Thread, ...], wait: Wait | None, saw_all: bool, group: str) -> tuple[Thread, ...]:
    if not any(thread.main for thread in threads):
        threads = (Thread(tid=0, main=True, wait=wait, stable_for=STABLE_S), *threads)
    found = []
    for thread in threads:
        own = thread.wait
        if thread.main:
            if wait is not None:
                own = msgspec.structs.replace(wait, site=wait.site or _site(own), outer=wait.outer)
            elif own is not None and saw_all:
                own = None  # its dump shows that it waits in no operation of a group
            elif own is not None and not own.group:
                own = msgspec.structs.replace(own, group=group)
        found.append(msgspec.structs.replace(thread, wait=own))
    return tuple(found)


def _site(wait: Wait | None) -> Frame | None:
    return wait.site if wait is not None else None
