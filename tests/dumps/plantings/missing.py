"""Ranks that do not come: stuck in the user's code, with and without a dump of their own."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..simulate import Simulation, Stuck
from ..write import Moment
from .jobs import Job, after_hang, make_job, moments_at
from .planted import Lost, Place, Planted
from .shown import Shown, all_blocked, edited, places, spot


@dataclass
class _Hang:
    job: Job
    simulation: Simulation
    ranks: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def near(self) -> frozenset[Place]:
        """Where the missing ranks were last seen, and what they did not enter."""
        found: set[Place] = set()
        for rank, place in zip(self.ranks, self.places, strict=True):
            found |= places(self.job.op(rank, place).site.user, None)
            for record in reversed(self.simulation.ranks[rank].records):
                found |= places(record.op.site.user, None)
                break
        return frozenset(found)

    @property
    def spots(self) -> str:
        return " and ".join(
            f"rank {rank} is stuck before {spot(self.job, rank, place)}"
            for rank, place in zip(self.ranks, self.places, strict=True)
        )


def _hang(rng: random.Random, job: Job, count: int = 1) -> _Hang | None:
    """Let so many ranks be stuck in user code, each before an operation of one step; None if it does not work out."""
    ranks = tuple(rng.sample(range(job.world), count))
    step = rng.randrange(1, job.plan.steps)
    programs = job.programs()
    places = []
    for rank in ranks:
        each = job.courses[rank]
        choice = [place for place in job.issues(rank) if each.begins[step] <= place < each.begins[step + 1]]
        if not choice:
            return None
        places.append(rng.choice(choice))
        programs[rank] = edited(programs[rank], places[-1], 0, [Stuck()])
    simulation = job.run(programs)
    if any(simulation.ranks[rank].state != "stuck" or simulation.unfinished(rank) for rank in ranks):
        return None
    return _Hang(job, simulation, ranks, tuple(places)) if all_blocked(simulation, ranks) else None


def _hang_planted(
    hang: _Hang, moments: list[Moment], lost: dict[int, Lost] | None = None, stale: Iterable[int] = ()
) -> Planted | None:
    lost = lost or {}
    job, simulation = hang.job, hang.simulation
    shown = Shown(job, simulation, moments, {*lost, *stale})
    if not all(shown.missing_is_seen(rank) for rank in hang.ranks):
        return None
    if not all(shown.waiting_is_seen(rank) for rank in shown.unseen - set(hang.ranks)):
        return None
    if job.backend == "gloo" and not shown.members_are_seen():
        return None
    return Planted(
        "", 0, frozenset(hang.ranks), None, hang.spots, simulation, moments, job.form,
        near=hang.near if job.form.frames else frozenset(), done_by=frozenset(hang.ranks), lost=lost,
    )  # fmt: skip


def missing(rng: random.Random) -> Planted | None:
    hang = _hang(rng, make_job(rng, reinit=rng.random() < 0.06))
    return hang and _hang_planted(hang, after_hang(rng, hang.job, hang.simulation))


def missing_no_dump(rng: random.Random) -> Planted | None:
    hang = _hang(rng, make_job(rng, gloo=False))
    return hang and _hang_planted(hang, after_hang(rng, hang.job, hang.simulation), {hang.ranks[0]: "absent"})


def two_roots(rng: random.Random) -> Planted | None:
    hang = _hang(rng, make_job(rng), count=2)
    return hang and _hang_planted(hang, after_hang(rng, hang.job, hang.simulation))


def missing_some_dumps(rng: random.Random) -> Planted | None:
    hang = _hang(rng, make_job(rng, gloo=False))
    if hang is None:
        return None
    others = [rank for rank in range(hang.job.world) if rank not in hang.ranks]
    gone = rng.sample(others, max(1, round(0.05 * hang.job.world)))
    ways: tuple[Lost, ...] = ("absent", "absent", "truncated", "truncated", "empty", "garbage")
    return _hang_planted(hang, after_hang(rng, hang.job, hang.simulation), {rank: rng.choice(ways) for rank in gone})


def missing_stale_dump(rng: random.Random) -> Planted | None:
    """One rank that is well was asked thirty seconds before the others, when all was well."""
    job = make_job(rng, gloo=False, step_s=1.5)
    hang = _hang(rng, job)
    if hang is None:
        return None
    stopped = hang.simulation.ranks[hang.ranks[0]].host
    before = rng.uniform(3, 15)
    early = stopped - before
    if early < 1 or early + 30 < hang.simulation.last_moment + 8:
        return None
    job.form = replace(job.form, timeout_ms=10_000)
    moments = moments_at(rng, job.world, early + 30, 1.0, 2000)
    stale = rng.choice([rank for rank in range(job.world) if rank not in hang.ranks])
    moments[stale] = replace(moments[stale], at=early)
    planted = _hang_planted(hang, moments, stale=[stale])
    return planted and replace(planted, description=f"{planted.description}; rank {stale}'s dump is 30 s older")


def missing_unequal_rings(rng: random.Random) -> Planted | None:
    hang = _hang(rng, make_job(rng))
    if hang is None:
        return None
    moments = [
        replace(moment, ring=rng.choice((30, 60, 120, 300, 2000)))
        for moment in after_hang(rng, hang.job, hang.simulation)
    ]
    return _hang_planted(hang, moments)
