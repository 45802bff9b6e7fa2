"""One rank leaves out an operation, and pairs with its neighbours' from then on."""

from __future__ import annotations

import random
from dataclasses import replace

from ..simulate import Group
from .jobs import MESHES, Job, after_hang, make_job
from .planted import Place, Planted
from .shown import Shown, all_blocked, around, circles_of, edited, places, spot


def skipped(rng: random.Random) -> Planted | None:
    return _skip(rng, make_job(rng, gloo=False), before_ring=False)


def skipped_before_ring(rng: random.Random) -> Planted | None:
    """All operations are alike, so the job runs on for long with one rank an operation ahead."""
    size = rng.choice((65_536, 1_048_576))
    steps = rng.randint(24, 40)
    one_group = rng.random() < 0.75
    meshes = [axes for axes in MESHES if (len(axes) == 1) == one_group and "expert" not in axes]
    job = make_job(
        rng, meshes, gloo=False, steps=steps, layers=1, micro_batches=1, sharded=False,
        buckets=(size,) * (rng.randint(1, 3) if one_group else 1), buckets_from_cpp=rng.random() < 0.5, norm_axis=None,
        loss_axis=None, checkpoint_every=rng.choice((0, steps - 2)) if one_group else 0, checkpoint_op="barrier",
    )  # fmt: skip
    return _skip(rng, job, before_ring=True)


def _skip(rng: random.Random, job: Job, before_ring: bool) -> Planted | None:
    rank = rng.randrange(job.world)
    last_step = 2 if before_ring else job.plan.steps
    end = job.courses[rank].begins[last_step]
    choice = [place for place in job.issues(rank, lambda op: not op.parts) if place < end]
    if not choice:
        return None
    place = rng.choice(choice)
    op = job.op(rank, place)
    programs = job.programs()
    programs[rank] = edited(programs[rank], place, 1, [])
    simulation = job.run(programs)
    if not all_blocked(simulation, [rank]) or simulation.ranks[rank].state not in ("waiting", "finished"):
        return None
    group = job.layout.group(op.axis, rank)
    peer = next(member for member in group.ranks if member != rank)
    theirs = [record for record in simulation.ranks[peer].records if record.group is group and not record.is_p2p]
    left_out = next((record for record in theirs if record.instruction == place), None)
    if left_out is None:
        return None
    moments = after_hang(rng, job, simulation)
    if before_ring:
        ring = rng.choice((20, 30, 40))
        moments = [replace(moment, ring=ring) for moment in moments]
    shown = Shown(job, simulation, moments)
    held = [
        {record.seq for record in shown.ring(member) if record.group is group and not record.is_p2p}
        for member in group.ranks
    ]
    if before_ring and any(left_out.seq + 3 >= min(seqs, default=0) for seqs in held):
        return None
    theirs_held = [seqs for member, seqs in zip(group.ranks, held, strict=True) if member != rank]
    if not before_ring and any(left_out.seq not in seqs for seqs in theirs_held):
        return None
    own = {record.seq: record for record in shown.ring(rank) if record.group is group and not record.is_p2p}
    if not own or not (shown.missing_is_seen(rank) or _broken_is_seen(shown, group, rank)):
        return None
    clear = shown.tells_apart(rank, place, group)
    where, near = None, frozenset[Place]()
    for record in theirs if not before_ring else []:
        if record.seq < left_out.seq:
            continue
        mine = own.get(record.seq)
        if mine is None or mine.op.site != record.op.site:
            where = record.op.site.user if mine is not None else None
            near = places(record.op.site.user, mine.op.site.user if mine is not None else None)
            near |= around(job, simulation, rank, place)
            break
    also = [circle for circle in circles_of(simulation) if rank in circle]
    if not clear:
        also.append(frozenset([rank]))
    if before_ring:  # the place is lost; what they stand at in the end is not wrong
        ends = [simulation.ranks[rank].records[-1]]
        ends += [each for member in group.ranks for each in simulation.unfinished(member)]
        near = frozenset(each.op.site.user for each in ends if each.op.site.user is not None)
    return Planted(
        "", 0, frozenset([rank] if clear else group.ranks), shown.line(where) if clear else None,
        f"rank {rank} skipped {spot(job, rank, place)}", simulation, moments, job.form,
        near=near if job.form.frames else frozenset(), ambiguous=not clear, done_by=frozenset([rank]), also=tuple(also),
    )  # fmt: skip


def _broken_is_seen(shown: Shown, group: Group, culprit: int) -> bool:
    """The rings hold a number of the group at which the culprit does not fit the others."""
    for (index, _), meeting in shown.simulation.meetings.items():
        if index == group.index and meeting.broken and culprit in meeting.members:
            return all(any(own is seen for seen in shown.ring(member)) for member, (own, _) in meeting.members.items())
    return False
