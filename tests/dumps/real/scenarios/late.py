"""One rank is held up in its own code and does not come to the next collective; the others wait there."""

from __future__ import annotations

import queue
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from ..scenario import Job, Look, expect, scenario

ABSENT = "process-stuck loader-stalled"


@scenario(3, Look("hang", expect(ABSENT, "1")))
def sleeps(job: Job) -> None:
    job.init()
    for step in range(12):
        if step == 8 and job.rank == 1:
            time.sleep(600)  # <- also
        dist.all_reduce(torch.ones(16))  # <- here


@scenario(4, Look("hang", expect(ABSENT, "2"), apart=0.7))
def waits_for_a_queue(job: Job) -> None:
    """The dumps are written one after the other, as by a loop over hosts."""
    job.init()
    results: queue.Queue[int] = queue.Queue()
    for step in range(12):
        dist.broadcast(torch.ones(16), src=0)  # <- here
        time.sleep(0.01)
        if step == 5 and job.rank == 2:
            results.get()  # <- also
        dist.all_reduce(torch.ones(16))
        dist.all_reduce(torch.ones(8))


@scenario(3, Look("hang", expect(ABSENT, "1")))
def before_the_first_call(job: Job) -> None:
    """The dump of the rank that is held up holds no operation at all."""
    job.init()
    if job.rank == 1:
        threading.Event().wait()
    dist.all_reduce(torch.ones(16))


@scenario(4, Look("hang", expect(ABSENT, "1,3")))
def two_ranks_sleep(job: Job) -> None:
    job.init()
    for step in range(9):
        dist.all_reduce(torch.ones(16))  # <- here
        if step == 6 and job.rank in (1, 3):
            time.sleep(600)  # <- also


@scenario(4, Look("hang", expect(ABSENT, "0")))
def rank_0_writes_a_file(job: Job) -> None:
    job.init()
    for step in range(6):
        dist.all_reduce(torch.ones(16))  # <- here
        if step == 4:
            if job.rank == 0:
                time.sleep(600)  # <- also
            dist.barrier()


@scenario(3, Look("hang", expect(ABSENT, "2")))
def with_operations_under_way(job: Job) -> None:
    """The others have started several operations before they wait for the first of them."""
    job.init()
    for step in range(6):
        if step == 5 and job.rank == 2:
            time.sleep(600)  # <- also
        works = [dist.all_reduce(torch.ones(size), async_op=True) for size in (4, 8, 16, 32)]  # <- here
        for work in works:
            assert work is not None
            work.wait()


@scenario(3, Look("hang", expect(ABSENT, "0")), settings={"TORCH_FR_BUFFER_SIZE": "50"})
def ring_has_wrapped(job: Job) -> None:
    job.init()
    for step in range(40):
        dist.all_reduce(torch.ones(16))
        dist.broadcast(torch.ones(4), src=1)
        dist.all_reduce(torch.ones(2))  # <- here
        if step == 33 and job.rank == 0:
            time.sleep(600)  # <- also


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


@scenario(3, Look("hang", expect(ABSENT, "1")))
def in_backward(job: Job) -> None:
    class Stuck(torch.autograd.Function):
        """Does not come back from the backward."""

        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            time.sleep(600)  # <- also
            return grad

    job.init()
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.0001)
    for step in range(6):
        x = torch.randn(4, 8, requires_grad=True)
        if step == 4 and job.rank == 1:
            x = Stuck.apply(x)
        ddp(x).sum().backward()  # <- here


class _Numbers(Dataset[torch.Tensor]):
    def __init__(self, bad: bool) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.bad and index == 22:
            time.sleep(600)  # <- also
        return torch.randn(8)


@scenario(2, Look("hang", expect("loader-stalled process-stuck", "1")))
def loader_worker_sleeps(job: Job) -> None:
    job.init()
    ddp = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for batch in DataLoader(_Numbers(job.rank == 1), batch_size=4, num_workers=1):  # <- also
        optimizer.zero_grad()
        ddp(batch).sum().backward()  # <- here
        optimizer.step()


@scenario(2, Look("hang", expect(ABSENT, "1")))
def fsdp_forward(job: Job) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    job.init()
    mesh = init_device_mesh("cpu", (job.world,))
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(5):
        if step == 3 and job.rank == 1:
            time.sleep(600)  # <- also
        net(torch.randn(4, 8)).sum().backward()  # <- here
        optimizer.step()
        optimizer.zero_grad()
