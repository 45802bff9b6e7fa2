"""Random jobs for plantings to be planted in, and the moments at which their dumps are taken."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from ..programs import Course, Naming, Plan, course, lay_out, stage_of
from ..simulate import Backend, Issue, Layout, Op, Program, Simulation
from ..write import RANKS_PER_NODE, SCHEMES, Form, Moment

MESHES: tuple[dict[str, int], ...] = (
    {"data": 4}, {"data": 5}, {"data": 8}, {"data": 12}, {"data": 16}, {"data": 24},
    {"data": 2, "tensor": 2}, {"data": 4, "tensor": 2}, {"data": 2, "tensor": 4}, {"data": 3, "tensor": 2},
    {"data": 8, "tensor": 4}, {"data": 8, "tensor": 8}, {"data": 2, "expert": 4}, {"data": 4, "expert": 4},
    {"data": 2, "context": 4}, {"data": 2, "context": 2, "tensor": 2},
)  # fmt: skip
PIPELINES: tuple[dict[str, int], ...] = (
    {"pipeline": 4}, {"pipeline": 2, "data": 2}, {"pipeline": 4, "data": 2}, {"pipeline": 2, "data": 4},
    {"pipeline": 2, "data": 2, "tensor": 2}, {"pipeline": 4, "data": 2, "tensor": 2},
    {"pipeline": 2, "data": 4, "tensor": 4}, {"pipeline": 2, "data": 2, "context": 2, "tensor": 2},
    {"pipeline": 4, "data": 2, "context": 2, "tensor": 4},
)  # fmt: skip
_LARGE: tuple[dict[str, int], ...] = ({"data": 256}, {"data": 16, "tensor": 16}, {"data": 32, "expert": 8})
_PAIRS: tuple[dict[str, int], ...] = (
    {"data": 2, "tensor": 2}, {"data": 2, "context": 2, "tensor": 2}, {"pipeline": 2, "data": 2, "tensor": 2},
)  # fmt: skip


@dataclass
class Job:
    """A layout, what its ranks run, and the form of its dumps."""

    layout: Layout
    plan: Plan
    courses: list[Course]  # by rank; ranks of one role share theirs
    backend: Backend
    form: Form
    seed: int

    @property
    def world(self) -> int:
        return self.layout.world

    def programs(self) -> list[Program]:
        return [each.program for each in self.courses]

    def run(self, programs: list[Program]) -> Simulation:
        return Simulation(self.layout, programs, self.backend, self.seed).run()

    def op(self, rank: int, place: int) -> Op:
        instruction = self.courses[rank].program[place]
        assert isinstance(instruction, Issue)
        return instruction.op

    def issues(self, rank: int, wanted: Callable[[Op], bool] = lambda op: True, first_step: int = 1) -> list[int]:
        """The places in a rank's program where it calls such an operation, from that step on."""
        each = self.courses[rank]
        begin = each.begins[first_step]
        return [
            place
            for place in range(begin, each.begins[-1])
            if type(each.program[place]) is Issue and wanted(each.program[place].op)  # type: ignore[union-attr]
        ]


def make_job(
    rng: random.Random,
    meshes: Iterable[dict[str, int]] = MESHES + PIPELINES,
    gloo: bool = True,
    reinit: bool = False,
    ring: int = 0,
    **fixed: object,
) -> Job:
    """A random job on one of these meshes. `fixed` are values of the Plan."""
    axes = rng.choice(list(meshes))
    if meshes == MESHES + PIPELINES:
        chance = rng.random()
        axes = rng.choice(_LARGE) if chance < 0.02 else rng.choice(_PAIRS) if chance < 0.2 else axes
    backend: Backend = "gloo" if gloo and "pipeline" not in axes and rng.random() < 0.4 else "nccl"
    form = _form(rng, backend)
    plan = _plan(rng, axes, backend, form)
    plan = replace(plan, **fixed)  # type: ignore[arg-type]
    names: tuple[Naming, ...] = (
        ("new_group", "hashed") if backend == "gloo" else ("new_group", "hashed", "split", "mesh")
    )
    naming = rng.choice(names)
    world = 1
    for length in axes.values():
        world *= length
    chosen = tuple(rng.sample(range(world), ring))
    layout = lay_out(axes, naming, 2 if reinit else 1, chosen)
    by_stage = [course(plan, stage) for stage in range(axes.get("pipeline", 1))]
    if reinit:
        by_stage = [_after_reinit(rng, plan, stage, each) for stage, each in enumerate(by_stage)]
    courses = [by_stage[stage_of(layout, rank)] for rank in range(world)]
    return Job(layout, plan, courses, backend, form, rng.getrandbits(32))


def _after_reinit(rng: random.Random, plan: Plan, stage: int, second: Course) -> Course:
    """A short first life of the process group, then the second, whose steps are the ones that count."""
    first = course(replace(plan, steps=2), stage).program
    second = course(plan, stage, prefix="2:")
    return Course([*first, *second.program], [len(first) + begin for begin in second.begins])


def _form(rng: random.Random, backend: Backend) -> Form:
    minors = (9, 10) if backend == "gloo" else (0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10)
    minor = rng.choice(minors)
    container: Literal["pickle", "json"] = "json" if minor >= 3 and rng.random() < 0.2 else "pickle"
    timeout_s = 1800 if backend == "gloo" else rng.choice((10, 30, 60, 120, 300, 590))
    return Form(
        version=f"2.{minor}",
        container=container,
        timing=backend == "nccl" and rng.random() < 0.4,
        frames=container == "pickle" and rng.random() < 0.8,
        timeout_ms=timeout_s * 1000,
        scheme=rng.choice((*SCHEMES[:1] * 4, *SCHEMES[1:])),
    )


def _plan(rng: random.Random, axes: dict[str, int], backend: Backend, form: Form) -> Plan:
    simple = list(axes) == ["data"] and rng.random() < 0.4  # one group, one kind of operation a step
    pairs = all(length == 2 for length in axes.values()) and rng.random() < 0.6  # no group of more than two
    large = max(axes.values()) > 24
    schedule: Literal["gpipe", "1f1b"] = rng.choice(("gpipe", "1f1b"))
    sizes = (65_536, 262_144, 1_048_576, 4_194_304)
    buckets = tuple(rng.choice(sizes) for _ in range(1 if simple else rng.randint(1, 5)))
    inner = [axis for axis in axes if axis not in ("pipeline", "data")]
    norms = [*inner, None] if pairs else ["world", "world", *inner, None]
    return Plan(
        axes,
        steps=rng.randint(20, 50) if simple else 4 if large else rng.choice((4, 6, 8, 10, 12, 20)),
        layers=1 if simple else rng.randint(1, 3),
        micro_batches=rng.randint(2, 5) if "pipeline" in axes else rng.choice((1, 1, 2)),
        schedule=schedule,
        batched=schedule == "1f1b" or rng.random() < 0.5,
        sequence_parallel=rng.random() < 0.4,
        sharded=not simple and rng.random() < 0.3,
        buckets=buckets,
        buckets_from_cpp=rng.random() < 0.6,
        cpu=backend == "gloo",
        norm_axis=None if simple else rng.choice(norms),
        norm_syncs=rng.random() < 0.5,
        forward_syncs=rng.random() < 0.25,
        loss_axis=None if simple or pairs else rng.choice(("world", "world", None)),
        checkpoint_every=0 if pairs or simple else rng.choice((0, 0, 2, 3, 5)),
        checkpoint_op=rng.choice(("barrier", "broadcast")),
        varying=not simple and rng.random() < 0.2,
        dtype=rng.choice(("BFloat16", "BFloat16", "Half", "Float")),
        hidden=rng.choice((512, 768, 1024, 4096)),
        sequence=rng.choice((256, 512, 2048)),
        step_s=rng.choice((0.08, 0.3, 1.0)),
        loader_s=rng.choice((0.005, 0.05)),
        barrier="barrier" if backend == "gloo" else "all_reduce_barrier" if form.minor >= 7 else "all_reduce",
    )


def _clocks(rng: random.Random, world: int) -> list[float]:
    """Clocks differ by up to some milliseconds from node to node."""
    nodes = [max(-0.005, min(0.005, rng.gauss(0, 0.002))) for _ in range(world // RANKS_PER_NODE + 1)]
    return [nodes[rank // RANKS_PER_NODE] + rng.uniform(-1e-4, 1e-4) for rank in range(world)]


def moments_at(rng: random.Random, world: int, at: float, spread: float, ring: int) -> list[Moment]:
    return [Moment(at + rng.uniform(0.0, spread), clock, ring) for clock in _clocks(rng, world)]


def after_hang(rng: random.Random, job: Job, simulation: Simulation) -> list[Moment]:
    """The dumps of a hang: written when the time-out of NCCL has passed, within two seconds of each other."""
    delay = rng.uniform(10, 600) if job.backend == "gloo" else job.form.timeout_ms / 1000 + rng.uniform(0.2, 9)
    ring = 2000 if rng.random() < 0.6 else rng.choice((50, 80, 150, 300))
    return moments_at(rng, job.world, simulation.last_moment + delay, 1.5, ring)
