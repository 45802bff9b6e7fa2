"""What gloo's dumps do not hold: sends and receives, monitored barriers, ranks that cannot write."""

from __future__ import annotations

import re
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ..scenario import NOTHING, Job, Look, expect, scenario
from .late import ABSENT

NO_DUMP = f"{ABSENT} crashed-by-signal host-out-of-memory process-spinning process-frozen"


# Rank 0 waits for rank 1's message, which the dumps do not show: both look as if they were held up in their own code.
@scenario(4, Look("hang", expect(f"{ABSENT} unmatched-send-recv", "0,1|1|0")))
def receives_what_nobody_sends(job: Job) -> None:
    job.init()
    for step in range(6):
        dist.all_reduce(torch.ones(16))  # <- here
        if step == 4 and job.rank == 0:
            dist.recv(torch.ones(4), src=1)  # <- also
        if step == 4 and job.rank == 1:
            time.sleep(600)  # <- also


@scenario(2, Look("hang", NOTHING, stacked=expect("unmatched-send-recv", "0,1", silent=True)))
def both_receive(job: Job) -> None:
    """All waits are unseen: the dumps show a job whose collectives are done."""
    job.init()
    for _ in range(6):
        dist.all_reduce(torch.ones(16))
    dist.recv(torch.ones(4), src=1 - job.rank)


@scenario(4, Look("hang", expect(NO_DUMP, "2"), stop=(2,), placed=False))
def a_stopped_rank(job: Job) -> None:
    job.init()
    for step in range(6):
        dist.all_reduce(torch.ones(16))
        if step == 4 and job.rank == 2:
            time.sleep(600)


@scenario(4, Look("hang", expect(NO_DUMP, "3"), stop=(3,)))
def the_last_rank_is_stopped(job: Job) -> None:
    """Only the dumps' list of groups says that there are four ranks."""
    job.init()
    for step in range(6):
        dist.all_reduce(torch.ones(16))
        if step == 4 and job.rank == 3:
            time.sleep(600)


# After `new_group` gloo's list of groups is broken, and nothing says that there are four ranks.
@scenario(4, Look("hang", expect(NO_DUMP, "3", silent=True), stop=(3,)))
def the_last_rank_and_another_group(job: Job) -> None:
    job.init()
    pair = dist.new_group([0, 1])
    for step in range(6):
        if job.rank < 2:
            dist.all_reduce(torch.ones(16), group=pair)
        dist.all_reduce(torch.ones(16))
        if step == 4 and job.rank == 3:
            time.sleep(600)


@scenario(4, Look("hang", expect(NO_DUMP, "3"), stop=(3,)), world_size=4)
def the_last_rank_and_the_world_size(job: Job) -> None:
    job.init()
    dist.new_group([0, 1])
    for step in range(6):
        dist.all_reduce(torch.ones(16))
        if step == 4 and job.rank == 3:
            time.sleep(600)


@scenario(4, Look("hang", expect(NO_DUMP, "3"), stop=(3,)))
def the_last_rank_and_an_all_gather(job: Job) -> None:
    """An all-gather's sizes tell how many ranks there are."""
    job.init()
    dist.new_group([0, 1])
    for step in range(6):
        dist.all_gather([torch.ones(2) for _ in range(4)], torch.ones(2))
        if step == 4 and job.rank == 3:
            time.sleep(600)


@scenario(3, Look("hang", expect(NO_DUMP, "1"), stop=(1,)))
def no_dump_in_a_grid(job: Job) -> None:
    """Two groups; the rank without a dump is in both."""
    job.init()
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    for step in range(6):
        if step == 4 and job.rank == 1:
            time.sleep(600)
        if job.rank < 2:
            dist.all_reduce(torch.ones(8), group=pairs[0])
        if job.rank > 0:
            dist.all_reduce(torch.ones(8), group=pairs[1])
        dist.all_reduce(torch.ones(16))


@scenario(4, Look("hang", expect(ABSENT, "1"), stop=(0, 2)))
def two_without_dumps_are_held_up(job: Job) -> None:
    """Ranks 0 and 2 only failed to write; rank 1's dump shows that it did not come."""
    job.init()
    for step in range(6):
        dist.all_reduce(torch.ones(16))  # <- here
        if step == 4 and job.rank == 1:
            time.sleep(600)  # <- also


AFTER_IT = expect(f"{ABSENT} lone-collective", "1", silent=True)
STACKS_TELL = expect(f"{ABSENT} lone-collective", "1")


# The monitored barrier is not recorded, so the rank that does not come to it cannot be told from those in it.
@scenario(3, Look("hang", NOTHING, stacked=STACKS_TELL))
def monitored_barrier(job: Job) -> None:
    job.init()
    for _ in range(4):
        dist.all_reduce(torch.ones(16))
    if job.rank == 1:
        time.sleep(600)
    dist.monitored_barrier(timeout=timedelta(seconds=600))


@scenario(3, Look("error", AFTER_IT), Look("later", AFTER_IT))
def monitored_barrier_times_out(job: Job) -> None:
    job.init()
    for _ in range(4):
        dist.all_reduce(torch.ones(16))
    if job.rank == 1:
        time.sleep(600)
    dist.monitored_barrier(timeout=timedelta(seconds=3), wait_all_ranks=True)


@scenario(3, Look("hang", NOTHING, stacked=STACKS_TELL))
def new_group_without_one_rank(job: Job) -> None:
    """The others wait in the store for the last one, which no dump shows."""
    job.init()
    for _ in range(4):
        dist.all_reduce(torch.ones(16))
    if job.rank == 1:
        time.sleep(600)
    dist.new_group([0, 1, 2])


@scenario(3, Look("hang", expect(NO_DUMP, "2")))
def new_group_then_a_collective(job: Job) -> None:
    """Ranks 0 and 1 have passed it; rank 2 is not in the group that they use, but in the one they wait in."""
    job.init()
    pair = dist.new_group([0, 1])
    for _ in range(4):
        dist.all_reduce(torch.ones(16))  # <- here
        if job.rank < 2:
            dist.all_reduce(torch.ones(16), group=pair)
    if job.rank == 2:
        time.sleep(600)  # <- also
    dist.all_reduce(torch.ones(16))


@scenario(3, Look("hang", expect(f"{NO_DUMP} process-spinning", "1"), mute=(1,)))
def spins_with_the_lock_of_python(job: Job) -> None:
    """Nobody can write this rank's dump: the others' are all there is."""
    job.init()
    for step in range(6):
        dist.all_reduce(torch.ones(16))
        if step == 4 and job.rank == 1:
            re.match(r"(a+)+$", "a" * 60 + "b")


# Its first dump says less than the others' second ones: whatever it did in between is not known.
@scenario(3, Look("before", NOTHING, moment=True), Look("hang", expect(NO_DUMP, "1"), mute=(1,), placed=False))
def a_dump_from_before(job: Job) -> None:
    job.init()
    for step in range(80):
        dist.all_reduce(torch.ones(16))
        time.sleep(0.05)
        if step == 70 and job.rank == 1:
            time.sleep(600)
