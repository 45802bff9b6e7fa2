"""One rank calls an operation that does not fit those of the others: another size, dtype, kind or order."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from ..programs import site
from ..simulate import Instruction, Issue, Op, Program
from .jobs import Job, after_hang, make_job
from .planted import Planted
from .shown import Shown, all_blocked, edited, places, spot

_FITTING = ("all_reduce", "_all_gather_base", "_reduce_scatter_base")


def _is_large(op: Op) -> bool:
    return op.kind in _FITTING and bool(op.inputs) and len(op.inputs[0]) > 0 and op.inputs[0] != (1,)


def _mismatch(
    rng: random.Random,
    wanted: Callable[[Op], bool],
    change: Callable[[random.Random, Job, int, Op], tuple[int, list[Instruction]]],
    what: str,
    first_minor: int = 0,
) -> Planted | None:
    """One rank calls something else at one place. `change` gives how many instructions go, and what comes; schemas
    before 2.`first_minor` do not show it."""
    job = make_job(rng, gloo=False)
    if job.form.minor < first_minor:
        return None
    rank = rng.randrange(job.world)
    choice = job.issues(rank, wanted)
    if not choice:
        return None
    place = rng.choice(choice)
    op = job.op(rank, place)
    remove, insert = change(rng, job, rank, op)
    programs = job.programs()
    programs[rank] = edited(programs[rank], place, remove, insert)
    culprit_op = insert[0].op  # type: ignore[union-attr]
    return _mismatch_planted(rng, job, programs, rank, place, culprit_op, what)


def _mismatch_planted(
    rng: random.Random, job: Job, programs: list[Program], rank: int, place: int, op: Op, what: str
) -> Planted | None:
    """The job in which `rank` called `op` at `place`, where the others called something that does not fit."""
    simulation = job.run(programs)
    if not all_blocked(simulation, ()):
        return None
    record = next((each for each in simulation.unfinished(rank) if each.instruction == place and each.op is op), None)
    if record is None:
        return None
    group = record.group
    meeting = simulation.meetings[(group.index, record.seq)]
    others = [other for member, (other, _) in meeting.members.items() if member != rank]
    if not meeting.broken or len(meeting.members) < len(group.ranks):
        return None
    if len({other.op.signature for other in others}) > 1:
        return None
    moments = after_hang(rng, job, simulation)
    shown = Shown(job, simulation, moments)
    if not all(any(own is seen for seen in shown.ring(member)) for member, (own, _) in meeting.members.items()):
        return None
    clear = shown.tells_apart(rank, place, group)
    return Planted(
        "", 0, frozenset([rank] if clear else group.ranks), shown.line(op.site.user) if clear else None,
        f"rank {rank} {what}: {spot(job, rank, place)}", simulation, moments, job.form,
        near=places(shown.line(op.site.user), shown.line(others[0].op.site.user)), ambiguous=not clear,
        done_by=frozenset([rank]), also=() if clear else (frozenset([rank]),),
    )  # fmt: skip


def shape_mismatch(rng: random.Random) -> Planted | None:
    def smaller(rng: random.Random, job: Job, rank: int, op: Op) -> tuple[int, list[Instruction]]:
        members = len(job.layout.group(op.axis, rank).ranks)
        rows = min(op.inputs[0][0], op.outputs[0][0])
        fewer = rng.randrange(1, rows)

        def cut(shape: tuple[int, ...]) -> tuple[int, ...]:
            return (fewer * members if shape[0] == rows * members else fewer, *shape[1:])

        changed = replace(op, inputs=tuple(map(cut, op.inputs)), outputs=tuple(map(cut, op.outputs)))
        return 1, [Issue(changed)]

    return _mismatch(rng, _is_large, smaller, "has a tensor of another size")


def dtype_mismatch(rng: random.Random) -> Planted | None:
    def other(rng: random.Random, job: Job, rank: int, op: Op) -> tuple[int, list[Instruction]]:
        wider = {"BFloat16": "Float", "Half": "Float", "Float": rng.choice(("Double", "BFloat16", "Half"))}
        return 1, [Issue(replace(op, dtype=wider[op.dtype]))]

    return _mismatch(rng, lambda op: op.kind in _FITTING, other, "has another dtype", first_minor=2)


def other_kind(rng: random.Random) -> Planted | None:
    def lone(rng: random.Random, job: Job, rank: int, op: Op) -> tuple[int, list[Instruction]]:
        group = job.layout.group(op.axis, rank)
        root = rng.choice([place for place in range(len(group.ranks)) if place != group.place[rank]])
        where = site("broadcast", "sync_settings", "settings.py", 64)
        broadcast = Op("broadcast", op.axis, ((256,),), ((256,),), "Float", where, root=root)
        return rng.randrange(2), [Issue(broadcast)]

    return _mismatch(rng, lambda op: op.kind in _FITTING, lone, "calls a broadcast alone")


def swapped(rng: random.Random) -> Planted | None:
    """Two neighbouring operations of one group in the other order on one rank."""
    job = make_job(rng, gloo=False)
    rank = rng.randrange(job.world)
    each = job.courses[rank]
    choice = []
    last: dict[str, int] = {}
    for place in job.issues(rank, lambda op: op.kind in _FITTING):
        op = job.op(rank, place)
        before = last.get(op.axis)
        same_step = before is not None and each.step_at(before) == each.step_at(place)
        if before is not None and same_step and job.op(rank, before).signature != op.signature:
            choice.append((before, place))
        last[op.axis] = place
    if not choice:
        return None
    first, second = rng.choice(choice)
    program = list(each.program)
    program[first], program[second] = program[second], program[first]
    programs = job.programs()
    programs[rank] = program
    what = f"swapped an operation with the next of its group ({spot(job, rank, second)})"
    return _mismatch_planted(rng, job, programs, rank, first, job.op(rank, second), what)
