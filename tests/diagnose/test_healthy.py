"""Given a healthy job, then there is no verdict: while it runs, at the limit of patience, and after its end."""

from __future__ import annotations

import pytest

from rankcall.diagnose import diagnose
from rankcall.snapshot import Thread, Wait

from .hand_made import SCRIPT, Job, frame, torch_frame

LOOP = """
def main():
    for x in loader:  # <- loop
        model(x).backward()  # <- train
        optimizer.step()  # <- step
    dist.barrier()  # <- barrier
"""


def silent(job: Job, **facts: object) -> None:
    report = diagnose(job.snapshot(**facts))
    assert report.verdict is None, report.verdict
    assert [finding for finding in report.findings if finding.severity != "note"] == []
    assert report.exit_code == 0


def trained(world: int = 2, steps: int = 12) -> Job:
    job = Job(world, LOOP)
    for rank in range(world):
        job[rank].train(steps, job.line("train"), job.line("train"), job.line("step"), job.line("loop"))
    return job


def test_a_plain_job_that_ended() -> None:
    job = trained().completed()
    for rank in (0, 1):
        job[rank].collective("barrier", job.line("barrier")).finishes()
    silent(job)


def test_a_plain_job_in_the_middle_of_a_step() -> None:
    job = trained().at_once()
    for rank in (0, 1):
        job[rank].forward(job.line("train")).backward(job.line("train")).waits_in_cpp().moving()
    silent(job)


def test_a_rank_that_comes_late_to_a_collective() -> None:
    job = trained().at_once()
    job[0].waits_in("barrier", job.line("barrier"))
    job[1].doing("evaluate", job.line("train"), busy=0.9)
    silent(job)


@pytest.mark.parametrize("phase", ["evaluate", "save", "data", "compile", "init", "forward"])
def test_twelve_seconds_of_anything_on_one_rank(phase: str) -> None:
    job = trained().at_once()
    job[0].doing(phase, job.line("loop"), busy=0.5)
    job[1].waits_in("barrier", job.line("barrier"))
    for rank in job.ranks:
        rank.set_thread(stable_for=12.0)
    silent(job)


def test_all_ranks_still_import_and_load_when_the_limit_is_short() -> None:
    job = Job(2, LOOP)
    for rank in (0, 1):
        job[rank].doing("init", job.line("loop"), busy=0.4)
    silent(job)


def test_a_big_collective_that_all_ranks_are_in_for_a_second() -> None:
    job = trained(4).at_once()
    for rank in range(4):
        job[rank].waits_in("all_reduce", job.line("barrier"), numel=10**9)
    silent(job)
    silent(job, stalled=True)


def test_a_slow_broadcast_from_a_root_that_has_gone_on() -> None:
    job = trained(3).at_once()
    job[0].collective("broadcast", job.line("loop"), numel=10**9, root=0).waits_in("all_reduce", job.line("barrier"))
    for rank in (1, 2):
        job[rank].waits_in("broadcast", job.line("loop"), numel=10**9, root=0)
    silent(job)


def test_join_with_uneven_inputs() -> None:
    """Rank 1 has run out; its shadow collectives, started inside Join, match those of rank 0's DDP."""
    job = trained().at_once()
    job[0].forward(job.line("train")).backward(job.line("train")).waits_in_cpp()
    for _ in range(2):
        job[1].collective("all_reduce", job.line("loop"), numel=640)
    job[1].loader_end(job.line("loop"))
    job[1].numbers[job.world_group] = job[0].numbers[job.world_group]
    wait = Wait("collective", "all_reduce", job.world_group, "gloo", job[0].numbers[job.world_group], numel=640)
    job[1].set_thread(wait=wait, phase="collective")
    silent(job)
    job.completed()
    for rank in (0, 1):
        job[rank].set_thread(wait=None)
        job[rank].finishes()
    silent(job)


def test_a_subgroup_whose_non_members_have_left() -> None:
    job = trained(4).at_once()
    pair = job.group(0, 1)
    job[2].finishes()
    job[3].finishes()
    job[0].waits_in("all_reduce", job.line("barrier"), pair).moving()
    job[1].doing("idle", job.line("loop"), busy=0.9)
    silent(job)
    job[1].moving()
    silent(job, reason="exit")


def test_an_async_operation_that_is_never_waited_for() -> None:
    job = trained().at_once()
    job[0].collective("all_reduce", job.line("barrier"))
    for rank in (0, 1):
        job[rank].doing("idle", job.line("loop"), busy=0.9).moving()
    silent(job)
    silent(job.completed())


def test_a_checkpoint_thread_that_waits_while_training_goes_on() -> None:
    job = trained().at_once()
    snapshot_ranks = []
    for rank in (0, 1):
        job[rank].doing("forward", job.line("train"), busy=0.9).moving()
        snapshot_ranks.append(job[rank].process())
    waiting = Thread(
        tid=2, name="dcp", phase="save", stable_for=9.0, collectives=3,
        wait=Wait("collective", "all_gather", "0-1#1", "gloo", 3, site=frame(job.line("loop"))),
    )  # fmt: skip
    import msgspec

    first = msgspec.structs.replace(snapshot_ranks[0], threads=(*snapshot_ranks[0].threads, waiting))
    snapshot = msgspec.structs.replace(job.snapshot(), processes=(first, snapshot_ranks[1]))
    assert diagnose(snapshot).verdict is None


def test_a_pipeline_of_sends_and_receives_in_flight() -> None:
    job = Job(3, LOOP).at_once()
    job[0].send(1, 3).send(1, 3).doing("forward", job.line("train"), busy=0.9).moving()
    job[1].recv(0, 4).send(2, 5).recv(0, 4).waits()
    job[2].recv(1, 4).recv(1, 4).waits()
    silent(job)


def test_uneven_all_to_all_is_allowed_to_differ_in_size() -> None:
    job = trained(3).completed()
    for rank in range(3):
        job[rank].collective("all_to_all", job.line("barrier"), numel=3 + rank).finishes()
    silent(job)


def test_object_collectives_differ_in_size() -> None:
    job = trained(2).completed()
    for rank in (0, 1):
        job[rank].collective("all_gather", job.line("barrier"), numel=3 + rank, outer="all_gather_object").finishes()
    silent(job)


def test_ctrl_c_in_the_middle_of_a_healthy_job_blames_nobody() -> None:
    job = trained(3)
    job[0].waits_in("all_reduce", job.line("barrier"))
    job[1].forward(job.line("train")).backward(job.line("train")).waits_in_cpp(asked=False)
    job[2].doing("data", job.line("loop"), busy=0.6)
    for rank in job.ranks:
        rank.killed().set_thread(stable_for=0.0)
        rank.facts["last_change"] = job.taken_at
    report = diagnose(job.snapshot(reason="interrupt", outcome="stopped", stalled=False))
    assert report.verdict is None
    assert [row.state for row in report.ranks] == ["waiting", "waiting", "loading"]


def test_world_size_one() -> None:
    job = trained(1).at_once()
    job[0].waits_in("barrier", job.line("barrier"))
    silent(job)
    job[0].set_thread(wait=None).finishes()
    silent(job.completed())


def test_only_the_judged_attempt_counts_after_an_elastic_restart() -> None:
    job = trained(2).at_once()
    for rank in (0, 1):
        job[rank].set(attempt=1).doing("forward", job.line("train"), busy=0.9).moving()
    crashed = Job(2, LOOP)
    crashed[0].raises("ValueError", "bad", 3)
    crashed[1].echoes(3)
    import msgspec

    old = tuple(rank.process() for rank in crashed.ranks)
    now = job.snapshot(attempt=1)
    both = msgspec.structs.replace(now, processes=(*old, *now.processes))
    assert diagnose(both).verdict is None


def test_destroy_and_init_again_begins_new_numbers() -> None:
    job = trained(2).at_once()
    again = "0-1#1"
    job.subgroups[again] = (0, 1)
    job[0].event("destroy", 3).event("init", 3).waits_in("all_reduce", job.line("barrier"), again)
    job[1].event("destroy", 3).doing("idle", job.line("loop"), busy=0.9).moving()
    silent(job)


def test_spellings_of_one_algorithm_meet() -> None:
    job = trained(3).completed()
    for rank, op in enumerate(("all_gather", "all_gather_into_tensor", "_allgather_base")):
        job[rank].collective(op, job.line("barrier"), numel=8).finishes()
    silent(job)


def test_the_paired_barrier_of_rank_0_first() -> None:
    job = trained(2).at_once()
    job[0].collective("barrier", 3).doing("idle", job.line("loop"), busy=0.8).moving()
    job[1].waits_in("barrier", 4)
    job[1].number(job.world_group, 0)
    silent(job)


def test_idle_loader_workers_and_threads_are_no_trouble() -> None:
    job = trained(2).at_once()
    idle = (torch_frame("utils/data/_utils/worker.py", "_worker_loop"),)
    for rank in (0, 1):
        job[rank].doing("forward", job.line("train"), busy=0.9).moving().child("loader-worker", *idle)
    silent(job)
    assert SCRIPT.endswith("train.py")
