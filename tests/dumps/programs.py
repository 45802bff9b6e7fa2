"""Layouts of jobs, and the training loops that their ranks run: data, tensor, pipeline, context and expert parallel.

Ranks of one pipeline stage share one program; which ranks they talk to follows from the layout.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Literal

from .simulate import Compute, Group, Host, Instruction, Issue, Layout, Op, Part, Site, Sync, Wait

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
CODE = "/home/ada/llm"

# --- layouts -----------------------------------------------------------------------------------------------------

Naming = Literal["new_group", "split", "hashed", "mesh"]
_MEGATRON = {
    "tensor": "TENSOR_MODEL_PARALLEL_GROUP", "data": "DATA_PARALLEL_GROUP", "pipeline": "PIPELINE_MODEL_PARALLEL_GROUP",
    "context": "CONTEXT_PARALLEL_GROUP", "expert": "EXPERT_MODEL_PARALLEL_GROUP",
}  # fmt: skip


def lay_out(axes: dict[str, int], naming: Naming, incarnations: int = 1, ring: tuple[int, ...] = ()) -> Layout:
    """Groups for a mesh; the last axis counts fastest. An axis as long as the world uses the default group.

    `naming`: new_group numbers every group, hashed names it after its ranks (use_local_synchronization), split and mesh
    give all groups of an axis one name (split_group), mesh with DeviceMesh's descriptions. `rings`: that many ranks
    get an axis pair to each neighbour, ring0, ring1, … (two-rank groups beside the mesh). With two incarnations
    the groups are made twice, the second under the same names, its axes called "2:data" and so on.
    """
    world = 1
    for length in axes.values():
        world *= length
    groups: list[Group] = []
    by_axis: dict[str, list[Group]] = {}
    for incarnation in range(incarnations):
        prefix = "" if incarnation == 0 else f"{incarnation + 1}:"
        numbers = itertools.count(1)

        def add(ranks: tuple[int, ...], name: str, description: str, incarnation: int = incarnation) -> Group:
            groups.append(Group(len(groups), name, description, ranks, incarnation))
            return groups[-1]

        everyone = add(tuple(range(world)), "0", "default_pg")
        by_axis[f"{prefix}world"] = [everyone] * world
        for axis, length in axes.items():
            if length == world:
                by_axis[f"{prefix}{axis}"] = [everyone] * world
                continue
            shared = str(next(numbers)) if naming in ("split", "mesh") else ""
            description = {"mesh": f"mesh_{axis}", "new_group": _MEGATRON[axis]}.get(naming, "undefined")
            lines: dict[int, Group] = {}
            for ranks in _lines(axes, axis):
                name = shared or (str(next(numbers)) if naming == "new_group" else _hash_name(ranks))
                lines.update(dict.fromkeys(ranks, add(ranks, name, description)))
            by_axis[f"{prefix}{axis}"] = [lines[rank] for rank in range(world)]
        for place, rank in enumerate(ring):
            pair = tuple(sorted({rank, ring[(place + 1) % len(ring)]}))
            name = str(next(numbers)) if naming != "hashed" else f"{_hash_name(pair)}_{place}"
            group = add(pair, name, "undefined")
            by_axis[f"{prefix}ring{place}"] = [group] * world
    return Layout(world, groups, by_axis)


def _lines(axes: dict[str, int], axis: str) -> list[tuple[int, ...]]:
    """The groups along one axis, in the order of their first ranks."""
    stride = 1
    for name in reversed(axes):
        if name == axis:
            break
        stride *= axes[name]
    world = stride * axes[axis]
    for name in axes:
        if name == axis:
            break
        world *= axes[name]
    firsts = [rank for rank in range(world) if rank // stride % axes[axis] == 0]
    return [tuple(first + stride * place for place in range(axes[axis])) for first in firsts]


def _hash_name(ranks: tuple[int, ...]) -> str:
    """A name of forty hexadecimal digits, equal on all members."""
    return f"{random.Random(str(ranks)).getrandbits(160):040x}"


def stage_of(layout: Layout, rank: int, prefix: str = "") -> int:
    """The pipeline stage of a rank; 0 without a pipeline."""
    axis = f"{prefix}pipeline"
    return layout.group(axis, rank).place[rank] if axis in layout.axes else 0


# --- call sites --------------------------------------------------------------------------------------------------

# Function and line in torch/distributed/distributed_c10d.py.
_TORCH_CALLS = {
    "all_reduce": ("all_reduce", 3012), "_all_gather_base": ("all_gather_into_tensor", 4091),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 4618), "broadcast": ("broadcast", 2902),
    "all_to_all": ("all_to_all_single", 4759), "all_reduce_barrier": ("barrier", 4908), "barrier": ("barrier", 4908),
    "reduce": ("reduce", 3175), "send": ("batch_isend_irecv", 2683), "isend": ("isend", 2470),
}  # fmt: skip
_LOOP = (
    ("train_step", f"{CODE}/train.py", 214),
    ("main", f"{CODE}/train.py", 377),
    ("<module>", f"{CODE}/train.py", 391),
)


def site(kind: str, function: str, file: str, line: int, through: tuple[tuple[str, str, int], ...] = _LOOP) -> Site:
    """A call of torch's function for `kind` at that line of the user's code."""
    name, torch_line = _TORCH_CALLS[kind]
    user = (f"{CODE}/{file}", line)
    frames = (
        (name, f"{TORCH}/distributed/distributed_c10d.py", torch_line),
        ("wrapper", f"{TORCH}/distributed/c10d_logger.py", 81),
        (function, *user),
        *through,
    )
    return Site(frames, user)


REDUCER = Site()  # DDP's reducer on a GPU: an autograd thread without Python frames
REDUCER_IN_BACKWARD = Site(
    (
        ("_engine_run_backward", f"{TORCH}/autograd/graph.py", 841),
        ("backward", f"{TORCH}/autograd/__init__.py", 354),
        ("backward", f"{TORCH}/_tensor.py", 648),
        ("backward_step", f"{CODE}/train.py", 188),
        *_LOOP,
    ),
    (f"{CODE}/train.py", 188),
)

# --- training loops ----------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """What a training loop does in each step. Times in seconds, sizes in elements."""

    axes: dict[str, int]
    steps: int = 8
    layers: int = 2
    micro_batches: int = 1
    schedule: Literal["gpipe", "1f1b"] = "gpipe"
    batched: bool = True  # pipeline transfers in one group call
    sequence_parallel: bool = False
    sharded: bool = False  # parameters gathered, gradients scattered over the data axis
    buckets: tuple[int, ...] = (1_048_576,)
    buckets_from_cpp: bool = True  # DDP's reducer; else a loop in Python
    cpu: bool = False
    norm_axis: str | None = "world"
    norm_syncs: bool = False
    forward_syncs: bool = False  # the host asks for the loss after each forward
    loss_axis: str | None = "world"
    checkpoint_every: int = 0
    checkpoint_op: Literal["barrier", "broadcast"] = "barrier"
    varying: bool = False  # sequence length changes from step to step
    dtype: str = "BFloat16"
    hidden: int = 1024
    sequence: int = 512
    step_s: float = 0.5
    loader_s: float = 0.05
    barrier: str = "all_reduce_barrier"
    extra: list[list[Instruction]] = field(default_factory=list)  # at the end of every step, by stage


@dataclass
class Course:
    """A stage's program, and where each step begins in it (one more entry: where the last ends)."""

    program: list[Instruction]
    begins: list[int]

    def step_at(self, place: int) -> int:
        return next(step for step in range(len(self.begins) - 1, -1, -1) if self.begins[step] <= place)


def course(plan: Plan, stage: int, prefix: str = "", first_step: int = 0) -> Course:
    """The training loop of one pipeline stage."""
    program: list[Instruction] = []
    begins = []
    for step in range(first_step, first_step + plan.steps):
        begins.append(len(program))
        program += _Step(plan, stage, step, prefix).instructions()
    begins.append(len(program))
    program.append(Sync())
    return Course(program, begins)


class _Step:
    """Writes one step of one stage."""

    def __init__(self, plan: Plan, stage: int, step: int, prefix: str) -> None:
        self.plan = plan
        self.stage = stage
        self.stages = plan.axes.get("pipeline", 1)
        self.step = step
        self.prefix = prefix
        self.tokens = plan.sequence + (64 * random.Random(step).randrange(1, 24) if plan.varying else 0)
        self.out: list[Instruction] = []
        passes = 3 * plan.layers * plan.micro_batches
        self.kernel_s = plan.step_s / max(1, passes)

    def instructions(self) -> list[Instruction]:
        plan = self.plan
        self.out.append(Host(plan.loader_s))
        if self.stages > 1 and plan.schedule == "1f1b":
            self.one_forward_one_backward()
        else:
            self.all_forwards_all_backwards()
        self.out.append(Wait())
        self.optimizer()
        if plan.extra:
            self.out += plan.extra[min(self.stage, len(plan.extra) - 1)]
        self.log_and_save()
        return self.out

    # --- the pipeline ----------------------------------------------------------------------------------------

    def all_forwards_all_backwards(self) -> None:
        for _ in range(self.plan.micro_batches):
            self.transfer(recv=-1)
            self.forward()
            self.transfer(send=1)
        for number in range(self.plan.micro_batches):
            self.transfer(recv=1)
            self.backward(last=number == self.plan.micro_batches - 1)
            self.transfer(send=-1)

    def one_forward_one_backward(self) -> None:
        count = self.plan.micro_batches
        warm_up = min(self.stages - self.stage - 1, count)
        steady = count - warm_up
        for _ in range(warm_up):
            self.transfer(recv=-1)
            self.forward()
            self.transfer(send=1)
        if steady:
            self.transfer(recv=-1)
        for number in range(steady):
            self.forward()
            self.transfer(send=1, recv=1)
            final = number == steady - 1
            self.backward(last=final and not warm_up)
            self.transfer(send=-1, recv=None if final else -1)
        for number in range(warm_up):
            self.transfer(recv=1)
            self.backward(last=number == warm_up - 1)
            self.transfer(send=-1)

    def transfer(self, send: int | None = None, recv: int | None = None) -> None:
        """Send to, and receive from, the stages at these offsets, as far as there are such."""
        if self.stages == 1:
            return
        wanted = (("send", send), ("recv", recv))
        parts = tuple(
            Part(direction, offset)  # type: ignore[arg-type]
            for direction, offset in wanted
            if offset is not None and 0 <= self.stage + offset < self.stages
        )
        if not parts:
            return
        line = 120 + 10 * len(parts) + parts[0].offset
        shape = (self.tokens, 1, self.plan.hidden)
        if self.plan.batched:
            where = site("send", "communicate", "pipeline.py", line)
            self.issue("p2p", "pipeline", shape, shape, where, parts=parts, batched=True, varies=self.plan.varying)
            return
        for part in parts:
            where = site("isend", f"{part.direction}_tensor", "pipeline.py", line + 40 + 5 * (part.direction == "recv"))
            self.issue("p2p", "pipeline", shape, shape, where, parts=(part,), varies=self.plan.varying)

    # --- the model -------------------------------------------------------------------------------------------

    def forward(self) -> None:
        for _ in range(self.plan.layers):
            self.gather_parameters()
            self.out.append(Compute(self.kernel_s))
            self.blocks(backward=False)
        if self.plan.forward_syncs:
            self.out.append(Sync())

    def backward(self, last: bool) -> None:
        plan = self.plan
        for layer in range(plan.layers):
            self.gather_parameters()
            self.out.append(Compute(2 * self.kernel_s))
            self.blocks(backward=True)
            if plan.sharded and "data" in plan.axes:
                flat = plan.hidden * plan.hidden
                where = site("_reduce_scatter_base", "reduce_grads", "sharding.py", 233)
                share = flat // plan.axes["data"]
                self.issue("_reduce_scatter_base", "data", (share * plan.axes["data"],), (share,), where, awaited=False)
            elif last and "data" in plan.axes:
                first = layer * len(plan.buckets) // plan.layers
                for number in range(first, (layer + 1) * len(plan.buckets) // plan.layers):
                    self.bucket(plan.buckets[number], number)

    def bucket(self, size: int, number: int) -> None:
        where, thread = REDUCER, "pt_autograd_0"
        if self.plan.cpu:
            where, thread = REDUCER_IN_BACKWARD, "pt_main_thread"
        if not self.plan.buckets_from_cpp:
            where = site("all_reduce", f"reduce_part_{number}", "data_parallel.py", 71 + 6 * number)
        self.issue("all_reduce", "data", (size,), (size,), where, awaited=False, dtype="Float", thread=thread)

    def gather_parameters(self) -> None:
        plan = self.plan
        if not (plan.sharded and "data" in plan.axes):
            return
        share = plan.hidden * plan.hidden // plan.axes["data"]
        where = site("_all_gather_base", "unshard", "sharding.py", 158)
        self.issue("_all_gather_base", "data", (share,), (share * plan.axes["data"],), where, awaited=False)
        self.out.append(Wait())

    def blocks(self, backward: bool) -> None:
        """What attention and the multilayer perceptron ask of the tensor, context and expert axes."""
        plan = self.plan
        axes = plan.axes
        tokens, hidden, shift = self.tokens, plan.hidden, 60 * backward
        if axes.get("context", 1) > 1:
            where = site("_all_gather_base", "gather_keys", "context_parallel.py", 96 + shift)
            shape, full = (tokens, hidden), (tokens * axes["context"], hidden)
            self.issue("_all_gather_base", "context", shape, full, where, varies=plan.varying)
        if axes.get("tensor", 1) > 1:
            where = site("all_reduce", "reduce_from_region", "tensor_parallel.py", 148 + shift)
            shape, full = (tokens, hidden), (tokens * axes["tensor"], hidden)
            if plan.sequence_parallel:
                gather = site("_all_gather_base", "gather_sequence", "tensor_parallel.py", 175 + shift)
                scatter = site("_reduce_scatter_base", "scatter_sequence", "tensor_parallel.py", 189 + shift)
                self.issue("_all_gather_base", "tensor", shape, full, gather, varies=plan.varying)
                self.out.append(Compute(self.kernel_s / 4))
                self.issue("_reduce_scatter_base", "tensor", full, shape, scatter, varies=plan.varying)
            else:
                self.issue("all_reduce", "tensor", shape, shape, where, varies=plan.varying)
                self.out.append(Compute(self.kernel_s / 4))
                self.issue("all_reduce", "tensor", shape, shape, where, varies=plan.varying)
        if axes.get("expert", 1) > 1:
            for line in (301, 318):
                where = site("all_to_all", "dispatch" if line == 301 else "combine", "experts.py", line + shift)
                self.issue("all_to_all", "expert", (tokens, hidden), (tokens, hidden), where, varies=plan.varying)

    # --- around the model ------------------------------------------------------------------------------------

    def optimizer(self) -> None:
        plan = self.plan
        if plan.norm_axis is not None:
            where = site("all_reduce", "clip_grad_norm", "optimizer.py", 88)
            self.issue("all_reduce", plan.norm_axis, (1,), (1,), where, dtype="Float")
            if plan.norm_syncs:
                self.out.append(Sync())
        self.out.append(Compute(self.kernel_s))

    def log_and_save(self) -> None:
        plan = self.plan
        if plan.loss_axis is not None:
            where = site("all_reduce", "average_loss", "metrics.py", 41)
            self.issue("all_reduce", plan.loss_axis, (), (), where, dtype="Float")
        self.out.append(Sync())
        if plan.checkpoint_every and self.step % plan.checkpoint_every == plan.checkpoint_every - 1:
            through = (("save", f"{CODE}/checkpoint.py", 52), *_LOOP[1:])
            if plan.checkpoint_op == "barrier":
                where = site("barrier", "wait_for_all", "checkpoint.py", 29, through)
                shape = (1,) if plan.barrier != "barrier" else None
                self.issue(plan.barrier, "world", shape, shape, where, dtype="Float", occasional=True)
            else:
                where = site("broadcast", "share_folder_name", "checkpoint.py", 37, through)
                self.issue("broadcast", "world", (128,), (128,), where, dtype="Byte", root=0, occasional=True)
            self.out.append(Sync())

    def issue(
        self,
        kind: str,
        axis: str,
        given: tuple[int, ...] | None,
        taken: tuple[int, ...] | None,
        where: Site,
        dtype: str | None = None,
        **more: object,
    ) -> None:
        inputs = () if given is None else (given,)
        outputs = () if taken is None else (taken,)
        self.out.append(
            Issue(Op(kind, self.prefix + axis, inputs, outputs, dtype or self.plan.dtype, where, **more))  # type: ignore[arg-type]
        )
