"""Jobs in which nothing is wrong, looked at while they run and when they are done. Nothing may be said."""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..scenario import NOTHING, Job, Look, moments, scenario
from .ended import again
from .groups import grid
from .late import model

LOOKS = (*moments(), Look("end", NOTHING))
PACE_S = 0.05
STEPS = 120


@scenario(3, *LOOKS, healthy=True)
def ddp(job: Job) -> None:
    job.init()
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        net(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(PACE_S)


@scenario(3, *LOOKS, healthy=True, cold=True)
def ddp_that_stacks_hold_up(job: Job) -> None:
    """The first dump with stacks takes seconds, and other ranks wait for the one that writes it."""
    ddp(job)


@scenario(4, *LOOKS, healthy=True)
def grid_of_groups(job: Job) -> None:
    job.init()
    tensor, data = grid(job, 2)
    for _ in range(STEPS):
        for _ in range(3):
            dist.all_reduce(torch.ones(64), group=tensor)
        dist.all_reduce(torch.ones(256), group=data)
        time.sleep(PACE_S)


@scenario(3, *LOOKS, healthy=True)
def one_rank_is_slow(job: Job) -> None:
    """The others are nearly always waiting for it."""
    job.init()
    for _ in range(18):
        time.sleep(0.3 if job.rank == 1 else 0.001)
        dist.all_reduce(torch.ones(16))


@scenario(3, *LOOKS, healthy=True, cold=True)
def one_rank_is_slow_and_stacks_hold_it_up(job: Job) -> None:
    one_rank_is_slow(job)


@scenario(3, *LOOKS, healthy=True)
def rank_0_saves_now_and_then(job: Job) -> None:
    job.init()
    for step in range(100):
        dist.all_reduce(torch.ones(16))
        time.sleep(PACE_S)
        if step % 20 == 0:
            if job.rank == 0:
                time.sleep(0.4)
            dist.barrier()


@scenario(3, *LOOKS, healthy=True)
def long_evaluation(job: Job) -> None:
    """All ranks compute for seconds without a collective."""
    job.init()
    for step in range(30):
        dist.all_reduce(torch.ones(16))
        if step == 10:
            time.sleep(4)


@scenario(4, *LOOKS, healthy=True)
def pipeline(job: Job) -> None:
    """Sends and receives between neighbours, which no dump shows, and a rare collective."""
    job.init()
    for step in range(STEPS):
        x = torch.ones(8)
        if job.rank > 0:
            dist.recv(x, src=job.rank - 1)
        time.sleep(PACE_S / 2)
        if job.rank < 3:
            dist.send(x, dst=job.rank + 1)
        if step % 10 == 9:
            dist.all_reduce(x)


@scenario(3, *LOOKS, healthy=True)
def every_kind(job: Job) -> None:
    """Roots that run ahead, gathers, scatters, objects and uneven sizes."""
    job.init()
    for step in range(STEPS // 2):
        root, mine = step % 3, torch.ones(6)
        dist.broadcast(mine, src=root)
        dist.reduce(mine, dst=root)
        dist.gather(mine, [torch.ones(6) for _ in range(3)] if job.rank == root else None, dst=root)
        dist.scatter(mine, [torch.ones(6) for _ in range(3)] if job.rank == root else None, src=root)
        dist.all_gather_into_tensor(torch.ones(18), mine)
        dist.reduce_scatter_tensor(torch.ones(2), mine)
        give = [1, 2, 3]
        take = [job.rank + 1] * 3
        dist.all_to_all_single(torch.ones(sum(take)), torch.ones(6), take, give)
        found: list[object] = [None] * 3
        dist.all_gather_object(found, {"loss": "x" * (job.rank * 7 + step)})
        dist.broadcast_object_list([found], src=0)
        dist.monitored_barrier(timeout=timedelta(seconds=60))
        dist.barrier()
        time.sleep(PACE_S)


@scenario(3, *LOOKS, healthy=True)
def operations_under_way(job: Job) -> None:
    job.init()
    for _ in range(STEPS):
        works = [dist.all_reduce(torch.ones(1 << 14), async_op=True) for _ in range(4)]
        time.sleep(PACE_S)
        for work in works:
            assert work is not None
            work.wait()


@scenario(4, *LOOKS, healthy=True)
def some_ranks_have_left_a_group(job: Job) -> None:
    """Ranks 2 and 3 work in a group of their own; 0 and 1 stopped using theirs long ago."""
    job.init()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for step in range(STEPS):
        if job.rank >= 2 or step < 5:
            dist.all_reduce(torch.ones(16), group=pairs[job.rank // 2])
        time.sleep(PACE_S)
    dist.barrier()


@scenario(3, *LOOKS, healthy=True)
def rank_0_has_more_to_do(job: Job) -> None:
    """Rank 0 gathers, writes and computes alone; the others run ahead as far as gloo lets them."""
    job.init()
    for _ in range(40):
        parts = [torch.ones(4) for _ in range(3)] if job.rank == 0 else None
        dist.gather(torch.ones(4), parts, dst=0)
        if job.rank == 0:
            time.sleep(0.15)


@scenario(3, *LOOKS, healthy=True)
def uneven_inputs_with_join(job: Job) -> None:
    from torch.distributed.algorithms.join import Join

    job.init()
    net = DistributedDataParallel(model(), broadcast_buffers=False)
    with Join([net]):
        for _ in range(80 + 20 * job.rank):
            net(torch.randn(4, 8)).sum().backward()
            time.sleep(PACE_S)


@scenario(2, *LOOKS, healthy=True)
def fsdp(job: Job) -> None:
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    job.init()
    mesh = init_device_mesh("cpu", (job.world,))
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(STEPS):
        net(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(PACE_S)


@scenario(3, *LOOKS, healthy=True, settings={"TORCH_FR_BUFFER_SIZE": "40"})
def begun_anew(job: Job) -> None:
    """The first default group has more operations than the second, and the ring holds some of both."""
    job.init()
    for _ in range(60):
        dist.all_reduce(torch.ones(16))
    again(job, 1)
    for _ in range(STEPS // 4):
        dist.all_reduce(torch.ones(16))
        time.sleep(4 * PACE_S)


@scenario(2, *moments(count=2), Look("end", NOTHING), healthy=True)
def nothing_yet(job: Job) -> None:
    """No rank has made a call."""
    job.init()
    time.sleep(5)
