"""The ranks make different calls: one leaves a call out, makes one more, or makes another one."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..scenario import Job, Look, expect, scenario
from .late import model

SKIPPED = "data-dependent-skip uneven-steps lone-collective"
ODD = f"collective-mismatch {SKIPPED}"
STANDS = f"{SKIPPED} process-stuck rank-left-early"


# --- a call left out, or made in addition ----------------------------------------------------------------------------


@scenario(3, Look("hang", expect(SKIPPED, "1"), expect(ODD, "1")))
def skips_one_of_two_lines(job: Job) -> None:
    """Calls of one size pair with the neighbours' for a while; the job hangs where the last ones do not."""
    job.init()
    for step in range(20):
        if not (step == 5 and job.rank == 1):
            dist.all_reduce(torch.ones(16))  # <- here
        dist.all_reduce(torch.ones(16))
    dist.barrier()
    time.sleep(600)


@scenario(3, Look("hang", expect(STANDS, "1")))
def skips_on_the_only_line(job: Job) -> None:
    """Nothing can show where: only that it is one call short at the end, and done."""
    job.init()
    for step in range(20):
        if step == 5 and job.rank == 1:
            continue
        dist.all_reduce(torch.ones(16))  # <- here
    time.sleep(600)  # <- also


@scenario(4, Look("hang", expect(SKIPPED, "2"), expect(STANDS, "2")))
def skips_and_ends_first(job: Job) -> None:
    job.init()
    for step in range(20):
        dist.all_reduce(torch.ones(16))
        if not (step == 5 and job.rank == 2):
            dist.all_reduce(torch.ones(16))  # <- here
        dist.all_reduce(torch.ones(16))
    time.sleep(600)  # <- also


@scenario(3, Look("hang", expect(ODD, "1")))
def skips_before_another_kind(job: Job) -> None:
    """The next call is of another kind, so the job hangs at the skip itself."""
    job.init()
    for step in range(12):
        dist.all_reduce(torch.ones(16))  # <- also
        dist.all_reduce(torch.ones(16))
        if not (step == 7 and job.rank == 1):
            dist.broadcast(torch.ones(16), src=0)  # <- here
    time.sleep(600)


@scenario(3, Look("hang", expect(f"lone-collective {ODD}", "0"), expect(f"lone-collective {ODD}", "0")))
def rank_0_logs_alone(job: Job) -> None:
    job.init()
    for step in range(20):
        dist.all_reduce(torch.ones(16))
        if step == 6 and job.rank == 0:
            dist.all_reduce(torch.ones(16))  # <- here
        dist.all_reduce(torch.ones(16))
    dist.barrier()
    time.sleep(600)


@scenario(3, Look("hang", expect(ODD, "1")))
def skips_a_backward(job: Job) -> None:
    """`continue` on a bad batch, under DDP: later steps of this rank pair with the others' earlier ones."""
    job.init()
    ddp = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(12):
        loss = ddp(torch.randn(4, 8)).sum()  # <- also
        if step == 5 and job.rank == 1:
            continue
        loss.backward()  # <- here
        optimizer.step()
    dist.barrier()
    time.sleep(600)


# --- fewer batches ---------------------------------------------------------------------------------------------------


@scenario(3, Look("hang", expect(f"{ODD} process-stuck", "2")))
def fewer_batches_then_barrier(job: Job) -> None:
    job.init()
    ddp = DistributedDataParallel(model())
    for _ in range(10 if job.rank != 2 else 8):
        ddp(torch.randn(4, 8)).sum().backward()  # <- also
    dist.barrier()  # <- here


@scenario(3, Look("hang", expect(STANDS, "2")))
def fewer_batches_then_work(job: Job) -> None:
    """The rank with fewer batches is done, and writes its results."""
    job.init()
    ddp = DistributedDataParallel(model(), broadcast_buffers=False)
    for _ in range(10 if job.rank != 2 else 8):
        ddp(torch.randn(4, 8)).sum().backward()  # <- here
    time.sleep(600)  # <- also


@scenario(2, Look("hang", expect(STANDS, "1")))
def fsdp_fewer_batches(job: Job) -> None:
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    job.init()
    mesh = init_device_mesh("cpu", (job.world,))
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    for _ in range(8 if job.rank == 0 else 6):
        net(torch.randn(4, 8)).sum().backward()  # <- here
    time.sleep(600)  # <- also


# --- another call ----------------------------------------------------------------------------------------------------


@scenario(3, Look("hang", expect("collective-mismatch", "2"), expect("collective-mismatch", "2")))
def broadcasts_instead(job: Job) -> None:
    job.init()
    for step in range(6):
        if step == 4 and job.rank == 2:
            dist.broadcast(torch.ones(16), src=2)  # <- here
        else:
            dist.all_reduce(torch.ones(16))
    time.sleep(600)


@scenario(3, Look("hang", expect("collective-mismatch", "1"), expect("collective-mismatch", "1")))
def gathers_instead(job: Job) -> None:
    job.init()
    for step in range(6):
        mine = torch.ones(4)
        if step == 4 and job.rank == 1:
            dist.gather(mine, None, dst=0)  # <- here
        else:
            dist.all_gather([torch.ones(4) for _ in range(3)], mine)
    time.sleep(600)


@scenario(3, Look("hang", expect("collective-mismatch", "1"), expect("collective-mismatch", "1")))
def barrier_for_an_all_reduce(job: Job) -> None:
    job.init()
    for step in range(6):
        if step == 4 and job.rank == 1:
            dist.barrier()  # <- here
        else:
            dist.all_reduce(torch.ones(1 << 16))
    time.sleep(600)


# Two ranks against two: only the steps before tell which side is wrong.
@scenario(4, Look("hang", expect("collective-mismatch", "2,3|0,1,2,3")))
def two_against_two(job: Job) -> None:
    job.init()
    for step in range(6):
        if step == 4 and job.rank >= 2:
            dist.broadcast(torch.ones(16), src=2)  # <- also
        else:
            dist.all_reduce(torch.ones(16))  # <- here
    time.sleep(600)


# --- other sizes: gloo ends a receiving rank with SIGABRT, the others get exceptions --------------------------------

# Who dies leaves no dump, and need not be the one that is wrong.
DEAD = expect("process-stuck crashed-by-signal", unsure=0.6)
UNEQUAL = expect("shape-mismatch", "1|1,2", silent=True, other=DEAD)
AFTER_ABORT = (Look("error", UNEQUAL, placed=False), Look("later", UNEQUAL, placed=False))


@scenario(3, *AFTER_ABORT)
def one_element_more(job: Job) -> None:
    job.init()
    for step in range(6):
        size = 1001 if step == 4 and job.rank == 1 else 1000
        dist.all_reduce(torch.ones(size))  # <- here


@scenario(4, *AFTER_ABORT)
def last_batch_is_smaller(job: Job) -> None:
    job.init()
    for step in range(6):
        rows = 3 if step == 4 and job.rank == 1 else 4
        mine = torch.ones(rows, 300)
        dist.all_gather([torch.ones(rows, 300) for _ in range(4)], mine)  # <- here


@scenario(3, *AFTER_ABORT)
def half_precision_on_one_rank(job: Job) -> None:
    job.init()
    for step in range(6):
        dtype = torch.float16 if step == 4 and job.rank == 1 else torch.float32
        dist.all_reduce(torch.ones(1000, dtype=dtype))  # <- here


# Equal bytes: gloo adds garbage without a word, and the job goes on.
@scenario(3, Look("hang", expect("shape-mismatch", "1", silent=True), placed=False))
def integers_on_one_rank(job: Job) -> None:
    job.init()
    for step in range(6):
        dtype = torch.int32 if step == 4 and job.rank == 1 else torch.float32
        dist.all_reduce(torch.ones(1000, dtype=dtype))
    time.sleep(600)
