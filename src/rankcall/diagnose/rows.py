"""The roll call: one row for each process that is, or was started to be, a rank."""

from __future__ import annotations

from rankcall.diagnose import words
from rankcall.diagnose.exceptions import text_of
from rankcall.diagnose.frames import where
from rankcall.diagnose.rings import steps_of
from rankcall.diagnose.roll import Roll, Standing, place_now
from rankcall.findings import CollectiveRow, ExitRow, RankRow, RankState, Where
from rankcall.snapshot import Process

MOST_FRAMES = 30


def rows(roll: Roll, awaited: frozenset[int] = frozenset()) -> tuple[RankRow, ...]:
    """Rows in the order of the ranks; ranks that nobody started come as rows without a process. `awaited`: ranks that
    others wait for, of which nothing but that is known."""
    found = []
    for rank, standing in roll.standings.items():
        found.append(_row(roll, standing, missing=rank in awaited))
        for process in roll.claims.get(rank, ()):
            if process is not standing.process and process.exit is None:
                found.append(_other_claim(process))
    absent = range(roll.world_size) if roll.world_size <= 100_000 else ()
    doubled = {p.launcher_rank for claimed in roll.claims.values() for p in claimed}
    found += [
        RankRow(rank=rank, host="", pid=None, state="missing")
        for rank in absent
        if rank not in roll.standings and rank not in doubled
    ]
    return tuple(sorted(found, key=lambda row: (row.rank is None, row.rank or 0, row.pid or 0)))


def _other_claim(process: Process) -> RankRow:
    return RankRow(
        rank=process.rank, host=process.host, pid=process.pid, state="unknown", local_rank=process.local_rank,
        world_size=process.world_size, devices=process.devices, versions=process.versions,
    )  # fmt: skip


def _row(roll: Roll, standing: Standing, *, missing: bool) -> RankRow:
    process, thread = standing.process, standing.thread
    wait = standing.wait
    phase_for = None
    if thread.phase_since is not None and standing.alive:
        phase_for = max(0.0, roll.snapshot.taken_at - thread.phase_since + process.clock_offset)
    sources = roll.snapshot.sources
    return RankRow(
        rank=standing.rank,
        host=process.host,
        pid=process.pid or None,
        state="missing" if missing else state_of(roll, standing),
        step=steps_of(standing) if process.recorded else None,
        phase=thread.phase if process.recorded else None,
        phase_for_s=round(phase_for, 1) if phase_for is not None else None,
        collective=CollectiveRow(wait.group, wait.seq, words.operation(wait), wait.numel, wait.dtype)
        if wait is not None
        else None,
        where=where(place_now(standing, roll.snapshot), sources),
        exit=_exit(standing),
        local_rank=process.local_rank,
        world_size=process.world_size,
        stack=_stack(roll, standing),
        devices=process.devices,
        versions=process.versions,
    )


def _stack(roll: Roll, standing: Standing) -> tuple[Where, ...]:
    frames = standing.thread.stack[:MOST_FRAMES]
    if not frames and standing.exception is not None:
        frames = tuple(reversed(standing.exception.frames))[:MOST_FRAMES]
    found = (where(frame, roll.snapshot.sources) for frame in frames)
    return tuple(place for place in found if place is not None)


def _exit(standing: Standing) -> ExitRow | None:
    process = standing.process
    end, note = process.exit, process.exit_note
    text = words.shorten(text_of(standing.exception), 300) if standing.exception is not None else None
    if end is not None:
        return ExitRow(end.code, words.signal_name(end.signal) if end.signal is not None else None, text)
    if note is not None:
        return ExitRow(note.code, None, text)
    return None


def state_of(roll: Roll, standing: Standing) -> RankState:
    """The one word for what a rank is doing."""
    if standing.ending == "left":
        return "finished"
    if standing.ending == "unknown":
        return "unknown"
    if not standing.present:
        return "crashed"
    process, thread = standing.process, standing.thread
    if process.state in ("stopped", "traced"):
        return "frozen"
    if process.initialized == "no" and roll.world_size > 1 and _others_came(roll, standing):
        return "missing"
    if standing.wait is not None:
        return "waiting"
    if not process.recorded:
        return "unknown"
    if thread.phase in ("data", "load"):
        return "loading"
    return "saving" if thread.phase == "save" else "computing"


def _others_came(roll: Roll, standing: Standing) -> bool:
    return any(s.process.initialized != "no" for s in roll.standings.values() if s is not standing)
