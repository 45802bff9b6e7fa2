"""Groups that their members enter in different order, so that ranks wait for each other in a circle."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from ..programs import course, site, stage_of
from ..simulate import Instruction, Issue, Op, Program
from .jobs import MESHES, PIPELINES, Job, after_hang, make_job
from .planted import Planted
from .shown import Shown, all_blocked, circles_of


def cycle(rng: random.Random) -> Planted | None:
    return rng.choice((_cycle_with_world, _cycle_in_mesh, _cycle_of_pairs))(rng)


def _measure(axis: str, number: int) -> Issue:
    """An operation at the end of a step, apart from all others."""
    where = site("all_reduce", f"report_{number}", "metrics.py", 83 + 7 * number)
    return Issue(Op("all_reduce", axis, ((4,),), ((4,),), "Float", where))


def _swap_measures(job: Job, rank: int, step: int) -> list[Instruction]:
    """The program of a rank that calls its two measures of that step in the other order."""
    each = job.courses[rank]
    program = list(each.program)
    first, second = [
        place
        for place in range(each.begins[step], each.begins[step + 1])
        if isinstance(program[place], Issue) and "report_" in str(program[place].op.site.frames[2:3])  # type: ignore[union-attr]
    ]
    program[first], program[second] = program[second], program[first]
    return program


def _cycle_planted(rng: random.Random, job: Job, programs: list[Program], expected: Iterable[int]) -> Planted | None:
    simulation = job.run(programs)
    cycles = circles_of(simulation)
    if cycles != [frozenset(expected)] or not all_blocked(simulation, ()):
        return None
    moments = after_hang(rng, job, simulation)
    shown = Shown(job, simulation, moments)
    held = {rank: {id(record) for record in shown.ring(rank)} for rank in cycles[0]}
    # The operations that make the circle are in the rings of its ranks.
    for rank in cycles[0]:
        if not all(id(record) in held[rank] for record in simulation.unfinished(rank)):
            return None
    if job.backend == "gloo" and not shown.members_are_seen():
        return None
    near = frozenset(
        record.op.site.user
        for rank in cycles[0]
        for record in simulation.unfinished(rank)
        if record.op.site.user is not None
    )
    done_by = frozenset(rank for rank in cycles[0] if programs[rank] is not job.courses[rank].program)
    # Whoever has enqueued both operations has shown the order of the two.
    shows_order = all(len(simulation.unfinished(rank)) > 1 for rank in done_by)
    return Planted(
        "", 0, cycles[0], None, f"ranks {sorted(cycles[0])} entered groups in different order", simulation, moments,
        job.form, near=near if job.form.frames else frozenset(),
        done_by=done_by, also=() if shows_order else (done_by,),
    )  # fmt: skip


_INNER = [axes for axes in MESHES + PIPELINES if len(axes) > 1]


def _cycle_with_world(rng: random.Random) -> Planted | None:
    """Half of a group's members enter the default group before their own."""
    axes = rng.choice(_INNER)
    axis = rng.choice(list(axes))
    extra: list[list[Instruction]] = [[_measure(axis, 0), _measure("world", 1)]]
    job = make_job(rng, [axes], extra=extra)
    group = job.layout.group(axis, rng.randrange(job.world))
    step = rng.randrange(1, job.plan.steps)
    programs = job.programs()
    for rank in rng.sample(group.ranks, len(group.ranks) // 2):
        programs[rank] = _swap_measures(job, rank, step)
    return _cycle_planted(rng, job, programs, group.ranks)


def _cycle_in_mesh(rng: random.Random) -> Planted | None:
    """Four ranks at the corners of a rectangle, four groups along its sides; two of them begin with the other side."""
    axes = rng.choice(_INNER)
    one, other = rng.sample(list(axes), 2)
    job = make_job(rng, [axes], extra=[[_measure(one, 0), _measure(other, 1)]])
    layout = job.layout
    corner = rng.randrange(job.world)
    right = rng.choice([rank for rank in layout.group(one, corner).ranks if rank != corner])
    below = rng.choice([rank for rank in layout.group(other, corner).ranks if rank != corner])
    across = set(layout.group(other, right).ranks) & set(layout.group(one, below).ranks)
    if len(across) != 1:
        return None
    step = rng.randrange(1, job.plan.steps)
    programs = job.programs()
    for rank in (right, below):
        programs[rank] = _swap_measures(job, rank, step)
    return _cycle_planted(rng, job, programs, {corner, right, below, *across})


def _cycle_of_pairs(rng: random.Random) -> Planted | None:
    """Each of two to four ranks shares a group with the next; one begins at the wrong end."""
    length = rng.randint(2, 4)
    job = make_job(rng, ring=length)
    pairs = [job.layout.axes[f"ring{place}"][0] for place in range(length)]
    ranks = [next(iter(set(pairs[place - 1].ranks) & set(pairs[place].ranks))) for place in range(length)]
    if length == 2:
        ranks = list(pairs[0].ranks)
    step = rng.randrange(1, job.plan.steps)
    programs: list[Program] = job.programs()
    for place, rank in enumerate(ranks):
        numbers = sorted({(place - 1) % length, place})
        plan = replace(job.plan, extra=[[_measure(f"ring{number}", number) for number in numbers]])
        job.courses[rank] = course(plan, stage_of(job.layout, rank))
        programs[rank] = _swap_measures(job, rank, step) if place == 0 else job.courses[rank].program
    return _cycle_planted(rng, job, programs, ranks)
