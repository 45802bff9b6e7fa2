"""Jobs in which nothing is wrong, at moments when it may look as if something were."""

from __future__ import annotations

import random
from collections.abc import Callable

from ..simulate import Simulation
from ..write import Moment
from .jobs import PIPELINES, Job, make_job, moments_at
from .planted import Planted

_Choice = Callable[[Simulation], "list[Moment] | None"]


def _well(job: Job, moments: _Choice, what: str) -> Planted | None:
    simulation = job.run(job.programs())
    assert simulation.ended, "a healthy program hangs"
    chosen = moments(simulation)
    return chosen and Planted("", 0, frozenset(), None, f"healthy: {what}", simulation, chosen, job.form)


def _random_moment(rng: random.Random, job: Job, first: float = 0.15, last: float = 0.95) -> _Choice:
    ring = rng.choice((2000, 2000, 2000, 50, 120))
    spread = rng.choice((0.002, 0.02, 0.3))
    share = rng.uniform(first, last)
    return lambda simulation: moments_at(rng, job.world, share * simulation.last_moment, spread, ring)


def healthy_moment(rng: random.Random) -> Planted | None:
    job = make_job(rng)
    return _well(job, _random_moment(rng, job), "in the middle of a run")


def healthy_pipeline(rng: random.Random) -> Planted | None:
    job = make_job(rng, PIPELINES, gloo=False)
    return _well(job, _random_moment(rng, job), "a pipeline in steady state")


def healthy_reinit(rng: random.Random) -> Planted | None:
    job = make_job(rng, reinit=True)
    return _well(job, _random_moment(rng, job, 0.05, 1.1), "destroyed and initialized again")


def healthy_end(rng: random.Random) -> Planted | None:
    job = make_job(rng)
    after = rng.uniform(0.2, 20)
    return _well(job, lambda run: moments_at(rng, job.world, run.last_moment + after, 0.5, 2000), "at its end")


def healthy_after_init(rng: random.Random) -> Planted | None:
    job = make_job(rng)

    def soon(simulation: Simulation) -> list[Moment]:
        firsts = sorted(run.records[0].created for run in simulation.ranks)
        return moments_at(rng, job.world, rng.choice(firsts) + rng.uniform(0, 0.01), 0.002, 2000)

    return _well(job, soon, "just after init")


def healthy_empty_ring(rng: random.Random) -> Planted | None:
    job = make_job(rng)

    def never(simulation: Simulation) -> list[Moment]:
        return moments_at(rng, job.world, min(run.records[0].created for run in simulation.ranks) - 1, 0.5, 2000)

    return _well(job, never, "nothing enqueued yet")


def healthy_slow_rank(rng: random.Random) -> Planted | None:
    """One rank is an operation behind all others for some milliseconds."""
    job = make_job(rng)

    def behind(simulation: Simulation) -> list[Moment] | None:
        gaps = []
        for meeting in simulation.meetings.values():
            came = sorted(record.created for record, _ in meeting.members.values())
            if 0.001 < came[-1] - came[-2] < 0.05:
                gaps.append((came[-2], came[-1]))
        if not gaps:
            return None
        begin, end = rng.choice(gaps)
        return moments_at(rng, job.world, rng.uniform(begin, end), 0.0, 2000)

    return _well(job, behind, "one rank is an operation behind for a moment")
