"""Jobs that have ended in part, ran into a time limit, or began anew."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

from ..scenario import NOTHING, Job, Look, expect, scenario
from .late import ABSENT
from .unseen import NO_DUMP

LATE = f"{ABSENT} timeout-too-short straggler"


@scenario(3, Look("error", expect(LATE, "1", silent=True), placed=False),
          Look("later", expect(LATE, "1")))  # fmt: skip
def time_out(job: Job) -> None:
    """gloo retires the operation that ran into its limit, as if it were done."""
    job.init(timeout_s=4)
    for step in range(8):
        dist.all_reduce(torch.ones(16))  # <- here
        if step == 5 and job.rank == 1:
            time.sleep(600)  # <- also


@scenario(4, Look("error", expect(LATE, "2", silent=True)), Look("later", expect(LATE, "2")))
def time_out_in_a_group(job: Job) -> None:
    job.init(timeout_s=4)
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for step in range(8):
        dist.all_reduce(torch.ones(16))
        if step == 5 and job.rank == 2:
            time.sleep(600)
        dist.all_reduce(torch.ones(4), group=pairs[job.rank // 2])


# Rank 2 is gone without a dump, the others got exceptions, and their dumps show the operation as done.
@scenario(3, Look("error", expect(NO_DUMP, "2", silent=True)), Look("later", expect(NO_DUMP, "2", silent=True)))
def rank_is_killed(job: Job) -> None:
    job.init()
    for step in range(8):
        dist.all_reduce(torch.ones(16))
        if step == 5 and job.rank == 2:
            os.kill(os.getpid(), 9)


@scenario(3, Look("error", expect(f"{NO_DUMP} rank-left-early", "1", silent=True)),
          Look("later", expect(f"{NO_DUMP} rank-left-early", "1", silent=True)))  # fmt: skip
def rank_leaves(job: Job) -> None:
    job.init()
    for step in range(8):
        dist.all_reduce(torch.ones(16))
        if step == 5 and job.rank == 1:
            os._exit(0)


@scenario(3, Look("error", expect("program-error process-stuck", "1|0,2", silent=True), placed=False),
          Look("later", expect("program-error process-stuck", "1")))  # fmt: skip
def rank_raises_and_stays(job: Job) -> None:
    """The rank that fails handles its exception and lives on; the others wait for it."""
    job.init()
    for step in range(8):
        dist.all_reduce(torch.ones(16))  # <- here
        if step == 5 and job.rank == 1:
            raise ValueError("a bad batch")


@scenario(3, Look("hang", expect(ABSENT, "0")))
def stuck_after_a_new_beginning(job: Job) -> None:
    """The second default group has the name of the first, and fewer operations."""
    job.init()
    for _ in range(12):
        dist.all_reduce(torch.ones(16))
    again(job, 1)
    for step in range(5):
        dist.all_reduce(torch.ones(16))  # <- here
        if step == 3 and job.rank == 0:
            time.sleep(600)  # <- also


@scenario(3, Look("hang", expect(ABSENT, "2")))
def stuck_at_the_first_call_after_it(job: Job) -> None:
    job.init()
    for _ in range(7):
        dist.all_reduce(torch.ones(16))  # <- here
    again(job, 1)
    if job.rank == 2:
        time.sleep(600)  # <- also
    dist.all_reduce(torch.ones(16))


@scenario(4, Look("hang", expect(ABSENT, "1")))
def groups_made_anew(job: Job) -> None:
    """Only the sub-groups are destroyed and made again."""
    job.init()
    for generation in range(3):
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        mine = pairs[job.rank // 2]
        for step in range(6):
            dist.all_reduce(torch.ones(16), group=mine)
            if generation == 2 and step == 2 and job.rank == 1:
                time.sleep(600)
            dist.all_reduce(torch.ones(16))
        dist.destroy_process_group(mine)


@scenario(3, Look("hang", NOTHING))
def destroyed(job: Job) -> None:
    job.init()
    for _ in range(7):
        dist.all_reduce(torch.ones(16))
    dist.destroy_process_group()
    time.sleep(600)


def again(job: Job, number: int) -> None:
    """Destroy the default group and make it again, by way of another store."""
    dist.barrier()
    dist.destroy_process_group()
    job.init(init_method=f"file://{job.folder}/store{number}", rank=job.rank, world_size=job.world)
