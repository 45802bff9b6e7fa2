"""Sends and receives of a pipeline that have no partner."""

from __future__ import annotations

import random
from dataclasses import replace

from ..programs import site
from ..simulate import Group, Issue
from .jobs import PIPELINES, after_hang, make_job
from .planted import Planted
from .shown import Shown, all_blocked, around, edited, spot


def unpaired(rng: random.Random) -> Planted | None:
    """A rank sends or receives once too often, or once too seldom."""
    job = make_job(rng, PIPELINES, gloo=False)
    rank = rng.randrange(job.world)
    choice = job.issues(rank, lambda op: bool(op.parts))
    if not choice:
        return None
    place = rng.choice(choice)
    op = job.op(rank, place)
    part = rng.choice(op.parts)
    programs = job.programs()
    where = None
    if rng.random() < 0.5:
        line = site("send" if op.batched else "isend", "probe_neighbour", "pipeline.py", 233)
        insert = [Issue(replace(op, parts=(part,), site=line))]
        programs[rank] = edited(programs[rank], place, 0, list(insert))
        what, where = f"calls a {part.direction} too many", line.user
    else:
        rest = tuple(each for each in op.parts if each != part)
        programs[rank] = edited(programs[rank], place, 1, [Issue(replace(op, parts=rest))] if rest else [])
        what = f"skipped a {part.direction}"
    simulation = job.run(programs)
    if not all_blocked(simulation, ()):
        return None
    group = job.layout.group(op.axis, rank)
    peer = group.ranks[group.place[rank] + part.offset]
    moments = after_hang(rng, job, simulation)
    shown = Shown(job, simulation, moments)
    if not _odd_is_seen(shown, group, rank, peer):
        return None
    if where is not None and not any(record.instruction == place for record in shown.ring(rank)):
        where = None
    clear = shown.tells_apart(rank, place, replace(group, ranks=tuple(sorted((rank, peer)))))
    near = {record.op.site.user for record in simulation.unfinished(peer)}
    near |= around(job, simulation, rank, place)
    return Planted(
        "", 0, frozenset([rank] if clear else [rank, peer]), shown.line(where) if clear else None,
        f"rank {rank} {what} (rank {peer}): {spot(job, rank, place)}", simulation, moments, job.form,
        near=frozenset(line for line in near if line is not None and job.form.frames), ambiguous=not clear,
        done_by=frozenset([rank]), also=() if clear else (frozenset([rank]),),
    )  # fmt: skip


def _odd_is_seen(shown: Shown, group: Group, rank: int, peer: int) -> bool:
    """A send or recv between the two is left alone, and its rank's ring holds it."""
    mine, theirs = group.place[rank], group.place[peer]
    for (index, _, *ends), meetings in shown.simulation.channels.items():
        if index != group.index or set(ends) != {mine, theirs}:
            continue
        for meeting in meetings:
            if len(meeting.members) == 1:
                side, (record, _) = next(iter(meeting.members.items()))
                holder = group.ranks[ends[side]]  # type: ignore[call-overload]
                if any(seen is record for seen in shown.ring(holder)):
                    return True
    return False
