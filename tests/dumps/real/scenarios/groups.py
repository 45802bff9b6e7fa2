"""Several process groups: the wait spreads over them, or is made by their order."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from ..scenario import Job, Look, expect, scenario
from .late import ABSENT
from .parted import ODD, SKIPPED

Groups = tuple[dist.ProcessGroup, dist.ProcessGroup]


def grid(job: Job, columns: int, **more: bool) -> Groups:
    """(tensor, data): the group of this rank's row, and that of its column."""
    rows = job.world // columns
    tensor = [list(range(row * columns, (row + 1) * columns)) for row in range(rows)]
    data = [list(range(column, job.world, columns)) for column in range(columns)]
    found = []
    for axis in (tensor, data):
        if more.get("use_local_synchronization"):
            found.append(dist.new_group(next(r for r in axis if job.rank in r), use_local_synchronization=True))
            continue
        made = [dist.new_group(ranks) for ranks in axis]
        found.append(next(group for group, ranks in zip(made, axis, strict=True) if job.rank in ranks))
    return found[0], found[1]


def step_of(tensor: dist.ProcessGroup, data: dist.ProcessGroup) -> None:
    for _ in range(2):
        dist.all_reduce(torch.ones(16), group=tensor)
    dist.all_reduce(torch.ones(64), group=data)


@scenario(4, Look("hang", expect(ABSENT, "3")))
def grid_2x2(job: Job) -> None:
    job.init()
    tensor, data = grid(job, 2)
    for step in range(8):
        if step == 5 and job.rank == 3:
            time.sleep(600)
        step_of(tensor, data)


@scenario(4, Look("hang", expect(ABSENT, "0")))
def grid_of_local_groups(job: Job) -> None:
    """Groups named after their ranks, made by their members alone."""
    job.init()
    tensor, data = grid(job, 2, use_local_synchronization=True)
    for step in range(8):
        if step == 5 and job.rank == 0:
            time.sleep(600)
        step_of(tensor, data)


@scenario(4, Look("hang", expect(ABSENT, "2")))
def mesh_2x2(job: Job) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    job.init()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    tensor, data = mesh.get_group("tensor"), mesh.get_group("data")
    for step in range(8):
        for at in range(3):
            if step == 5 and at == 1 and job.rank == 2:
                time.sleep(600)  # <- also
            dist.all_reduce(torch.ones(16), group=tensor)  # <- here
        dist.all_reduce(torch.ones(64), group=data)


@scenario(6, Look("hang", expect(ABSENT, "4")))
def grid_3x2_with_default_group(job: Job) -> None:
    job.init()
    tensor, data = grid(job, 2)
    for step in range(6):
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(16), group=tensor)  # <- here
        if step == 4 and job.rank == 4:
            time.sleep(600)  # <- also
        dist.all_reduce(torch.ones(64), group=data)


@scenario(4, Look("hang", expect(ODD, "1"), expect(f"{ODD} {ABSENT} group-order-inversion", "1|0,1|0,1,2,3")))
def grid_skips_a_call(job: Job) -> None:
    job.init()
    tensor, data = grid(job, 2)
    for step in range(8):
        dist.all_reduce(torch.ones(16), group=tensor)
        if not (step == 4 and job.rank == 1):
            dist.all_reduce(torch.ones(16), group=tensor)  # <- here
        dist.all_reduce(torch.ones(64), group=data)


@scenario(4, Look("hang", expect(ABSENT, "1,2")))
def two_causes(job: Job) -> None:
    """Two ranks are held up at different places, in groups that have nothing to do with each other."""
    job.init()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[job.rank // 2]
    for step in range(8):
        dist.all_reduce(torch.ones(16), group=mine)
        if step == 4 and job.rank == 1:
            time.sleep(600)
        if step == 6 and job.rank == 2:
            time.sleep(600)


@scenario(3, Look("hang", expect("group-order-inversion", "0,2|0,1,2|2")))
def two_groups_of_the_same_ranks(job: Job) -> None:
    job.init()
    first, second = dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])
    for step in range(5):
        order = (second, first) if step == 3 and job.rank == 2 else (first, second)
        for group in order:
            dist.all_reduce(torch.ones(16), group=group)  # <- here


@scenario(2, Look("hang", expect("group-order-inversion", "0,1")))
def two_ranks_two_groups(job: Job) -> None:
    job.init()
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    for step in range(5):
        if step == 3 and job.rank == 1:
            dist.all_reduce(torch.ones(16), group=second)  # <- also
            dist.all_reduce(torch.ones(16), group=first)
        else:
            dist.all_reduce(torch.ones(16), group=first)  # <- here
            dist.all_reduce(torch.ones(16), group=second)


@scenario(4, Look("hang", expect("group-order-inversion", "0,1,2,3")))
def a_circle_of_four(job: Job) -> None:
    """Each rank enters the group with its right neighbour first."""
    job.init()
    pairs = [dist.new_group(sorted([rank, (rank + 1) % 4])) for rank in range(4)]
    right, left = pairs[job.rank], pairs[job.rank - 1]
    for step in range(4):
        groups = (right, left) if job.rank % 2 == 0 or step == 3 else (left, right)
        for group in groups:
            dist.all_reduce(torch.ones(16), group=group)  # <- here


# One rank makes two groups in the other order; their names are equal, and they meet the wrong partners.
@scenario(3, Look("hang", expect("group-created-out-of-order group-order-inversion collective-mismatch", "2|0,1,2",
                                 silent=True)))  # fmt: skip
def groups_made_in_another_order(job: Job) -> None:
    job.init()
    lists = [[0, 1], [0, 1, 2]]
    made = [dist.new_group(ranks) for ranks in (lists if job.rank != 2 else lists[::-1])]
    for _ in range(3):
        for group in made:
            if dist.get_process_group_ranks(group).count(job.rank) if group is not None else False:
                dist.all_reduce(torch.ones(16), group=group)


@scenario(4, Look("hang", expect(f"{SKIPPED} {ABSENT} group-order-inversion", "3|1,3")))
def barrier_in_a_branch(job: Job) -> None:
    """Rank 3 leaves out the data group's call of a step, and stands in the barrier of the next thing."""
    job.init()
    tensor, data = grid(job, 2)
    for step in range(6):
        dist.all_reduce(torch.ones(16), group=tensor)
        if not (step == 5 and job.rank == 3):
            dist.all_reduce(torch.ones(64), group=data)  # <- here
    dist.barrier()  # <- also
