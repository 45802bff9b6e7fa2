"""Rings laid side by side -> the snapshot: a process for each rank, what it waits in, and the events that matter.

A ring may hold thousands of entries; the snapshot keeps the newest few, those that somebody waits in, and those around
the place where the ranks' calls part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rankcall.diagnose.readers.dumps.files import readable
from rankcall.diagnose.readers.dumps.members import Fleet, Lane, Member, global_rank, last_place, ranks_of, runs_of
from rankcall.diagnose.readers.dumps.reduce import P2P
from rankcall.diagnose.readers.dumps.rings import Ring
from rankcall.diagnose.readers.dumps.stages import behind
from rankcall.diagnose.readers.dumps.waiting import Open, find_waits, has_come
from rankcall.snapshot import Dump, Event, Group, Process, Snapshot, Thread, Wait

NEWEST, FEWER = 6, 2  # events kept of every rank; of a large job's
LARGE_JOB = 2048  # ranks
SHORTEST_PAUSE_S = 1.0  # writing the dumps of many ranks takes time
PAUSES = 2.0  # a pause this many times as long as usual ones means that the job stands still


def snapshot_of(fleet: Fleet, *, notes: Iterable[str] = (), whole_rings: bool = False) -> Snapshot:
    """The snapshot without shifts. `whole_rings` keeps every event, for a timeline."""
    waits = find_waits(fleet)
    _complete_guesses(fleet, waits)
    rings = [ring for member in fleet.members.values() for ring in member.rings]
    newest = max((ring.newest or 0.0 for ring in rings), default=0.0)
    written = max((ring.written for ring in rings), default=0.0)
    usual = max((ring.usual_gap for ring in rings), default=0.0)
    quiet, limit = written - newest, max(SHORTEST_PAUSE_S, PAUSES * usual)
    # A file written before its last operation was copied, or the clocks differ: then nothing tells, and whoever asks
    # about a job has a reason to.
    still = not 0.0 <= quiet < limit
    keep = _wanted(fleet, waits)
    idle = [rank for rank, one in waits.items() if one is None] if any(waits.values()) else []
    late = behind(fleet, idle)
    processes = [
        _process(
            fleet,
            member,
            waits[rank],
            keep.get(rank, ()),
            quiet if still and quiet > 0 else 1.0,
            whole_rings,
            rank in late,
        )
        for rank, member in fleet.members.items()
    ]
    return Snapshot(
        taken_at=max(newest, written) if still else newest,
        origin="files",
        reason="request",
        world_size=fleet.world_size,
        quiet_for=round(max(0.0, quiet), 3),
        stall_after=round(limit, 3),
        stalled=still,
        processes=tuple(processes),
        group_members={key: group.runs for key, group in fleet.groups.items()},
        notes=tuple(notes),
    )


def _complete_guesses(fleet: Fleet, waits: dict[int, Open | None]) -> None:
    """gloo names no members, and who has never used a group is not known to be in it. If all who have wait at one
    operation, somebody else is: the ranks that wait in nothing, else the only one that left no dump."""
    idle = [rank for rank, one in waits.items() if one is None and not fleet.members[rank].stale]
    silent = [rank for rank in range(fleet.world_size) if rank not in fleet.members]
    for key in fleet.guessed:
        group = fleet.groups[key]
        users = ranks_of(group.runs)
        at = {(one.key, one.ring.seq[one.place]) if (one := waits.get(rank)) is not None else None for rank in users}
        if len(at) != 1 or None in at or next(iter(at))[0] != key:  # type: ignore[index]
            continue
        others = [rank for rank in idle if rank not in users] or (silent if len(silent) == 1 else [])
        if others:
            runs = runs_of([*users, *others])
            fleet.groups[key] = replace(group, runs=runs, size=len(users) + len(others))


def _wanted(fleet: Fleet, waits: dict[int, Open | None]) -> dict[int, list[tuple[Ring, int, int | None, int | None]]]:
    """For each rank the places that others wait at: its own call at every key that somebody waits in, and its last
    call that answers a send or receive, or the last before it, with the peer and its number."""
    wanted: dict[int, list[tuple[Ring, int, int | None, int | None]]] = {}
    keys = {(one.key, one.ring.seq[one.place]) for one in waits.values() if one is not None and one.peer is None}
    for key, seq in keys:
        for rank in ranks_of(fleet.groups[key].runs):
            lane = _lane(fleet, rank, key)
            if lane is None or lane.enqueued is None or lane.enqueued < seq:
                continue
            place = last_place(lane.ring, lane.number, seq)
            if place is not None:
                wanted.setdefault(rank, []).append((lane.ring, place, None, None))
    for rank, one in waits.items():
        if one is not None and one.peer is not None and one.answer is not None:
            ring, place, number = one.answer
            if one.answered and not has_come(fleet, one, waits.get(one.peer)):
                number -= 1  # the call is on its queue, but it has not come to it
            wanted.setdefault(one.peer, []).append((ring, place, rank, number))
    return wanted


def _lane(fleet: Fleet, rank: int, key: str) -> Lane | None:
    member = fleet.members.get(rank)
    return member.lanes.get(key) if member is not None else None


def _process(
    fleet: Fleet,
    member: Member,
    wait: Open | None,
    keep: Iterable[tuple[Ring, int, int | None, int | None]],
    quiet: float,
    whole: bool,
    late: bool,
) -> Process:
    ring = member.rings[0]
    events: dict[tuple[int, int], Event] = {}
    for one in member.rings:
        most = NEWEST if len(fleet.members) < LARGE_JOB else FEWER
        first = 0 if whole else max(0, len(one) - most)
        for place in range(first, len(one)):
            events[(id(one), place)] = event_at(fleet, member, one, place)
    for one, place, peer, nth in keep:
        events[(id(one), place)] = event_at(fleet, member, one, place, peer, nth)
    ordered = sorted(events.items(), key=lambda item: (item[1].time, item[0][1]))
    site = None
    if len(ring):
        site = fleet.shared.site_of(ring.stacks[len(ring) - 1])
    return Process(
        host=ring.host,
        pid=0,
        claimed_rank=member.rank,
        world_size=fleet.world_size,
        recorded=False,
        initialized="done",
        backend=next(iter(ring.groups)).backend if ring.groups else "",
        threads=(Thread(tid=0, main=True, phase_site=site, wait=_wait(fleet, wait), stable_for=quiet),),
        groups=tuple(_group(fleet, key, lane) for key, lane in member.lanes.items()),
        ring=tuple(event for _, event in ordered),
        last_change=ring.newest,
        versions={"nccl": ring.library} if ring.library else {},
        dump=_dump(member, late),
    )


def _dump(member: Member, late: bool) -> Dump:
    ring = member.rings[0]
    return Dump(
        file=", ".join(readable(one.path) for one in member.rings),
        version=ring.version,
        entries=sum(len(one) for one in member.rings),
        oldest=ring.created[0] / 1e9 if len(ring) else None,
        newest=max((one.newest for one in member.rings if one.newest is not None), default=None),
        written=max(one.written for one in member.rings),
        whole=all(one.whole for one in member.rings),
        stale=member.stale,
        behind=late,
    )


def _group(fleet: Fleet, key: str, lane: Lane) -> Group:
    about = fleet.groups[key]
    reached = fleet.reached.get(key)
    enqueued, done = lane.enqueued, lane.done
    if reached is not None:
        # A dump older than the others' says less than theirs do of it.
        enqueued = reached if enqueued is None else max(enqueued, reached)
    return Group(
        key=key, name=about.name, description=about.description, backend=about.backend,
        incarnation=about.incarnation, enqueued=enqueued, finished=done,
    )  # fmt: skip


def _wait(fleet: Fleet, one: Open | None) -> Wait | None:
    if one is None:
        return None
    ring, place = one.ring, one.place
    call = fleet.shared.calls[ring.calls[place]]
    p2p = one.peer is not None
    return Wait(
        kind="p2p" if p2p else "collective",
        op=call.op,
        group=one.key,
        backend=call.backend,
        seq=None if p2p else ring.seq[place],
        outer="" if p2p else call.spelling.strip("_"),
        numel=call.numel or call.results or None,
        sizes=call.sizes if len(call.sizes) > 1 else (),
        dtype=call.dtype or None,
        peer=one.peer,
        nth=one.nth,
        site=fleet.shared.site_of(ring.stacks[place]),
        since=one.began / 1e9,
        source="flight-recorder",
    )


def event_at(
    fleet: Fleet, member: Member, ring: Ring, place: int, peer: int | None = None, nth: int | None = None
) -> Event:
    """One entry of a ring as an event."""
    call = fleet.shared.calls[ring.calls[place]]
    key = member.key(ring, ring.group[place]) or ""
    if call.is_p2p and peer is None and key:
        peer = global_rank(fleet, key, call.peer)
    return Event(
        index=place,
        time=ring.created[place] / 1e9,
        kind="send" if call.op == "send" else "recv" if call.op == "recv" else "collective",
        op=call.op,
        outer="" if call.is_p2p else call.spelling.strip("_"),
        group=key,
        seq=None if ring.flags[place] & P2P else ring.seq[place],
        numel=call.numel or call.results or None,
        dtype=call.dtype or None,
        peer=peer,
        nth=nth,
        site=fleet.shared.site_of(ring.stacks[place]),
        ended=ring.ended[place] / 1e9 if ring.ended is not None and ring.ended[place] else None,
    )
