"""Given ranks that wait, then the one that did not come is named, with what it is stuck in."""

from __future__ import annotations

import pytest

from rankcall.diagnose import diagnose
from rankcall.findings import Verdict
from rankcall.snapshot import Frame

from .hand_made import TORCH, Job, frame, torch_frame


def verdict(job: Job, **facts: object) -> Verdict:
    report = diagnose(job.snapshot(**facts))
    assert report.verdict is not None
    return report.verdict


SLEEP = """
def main():
    dist.all_reduce(x)  # <- reduce
    time.sleep(3600)  # <- sleep
    lock.acquire()  # <- lock
    data = sock.recv(10)  # <- socket
"""


def one_missing(mark: str, **doing: object) -> Job:
    job = Job(3, SLEEP)
    for rank in (0, 1, 2):
        job[rank].collective("all_reduce", job.line("reduce"))
    for rank in (0, 1):
        job[rank].waits_in("all_reduce", job.line("reduce"))
    job[2].doing("idle", job.line(mark), **doing)  # type: ignore[arg-type]
    return job


def test_a_sleeping_rank_is_stuck_at_its_line() -> None:
    job = one_missing("sleep", blocked_in="sleeping")
    found = verdict(job)
    assert (found.pitfall, found.culprits, found.waiting) == ("process-stuck", (2,), (0, 1))
    assert found.where is not None and found.where.line == job.line("sleep")
    assert found.where.code == "time.sleep(3600)  # <- sleep"
    assert "sleeps" in found.sentence and not found.proven


def test_a_sleeping_rank_is_not_named_before_the_limit() -> None:
    assert diagnose(one_missing("sleep").at_once().snapshot()).verdict is None


def test_a_user_who_asks_early_gets_the_best_guess_with_less_confidence() -> None:
    job = one_missing("sleep").at_once()
    early, late = verdict(job, reason="request"), verdict(one_missing("sleep"))
    assert early.pitfall == late.pitfall
    assert early.confidence < late.confidence


def test_a_spinning_rank_is_told_from_a_sleeping_one() -> None:
    assert verdict(one_missing("lock", busy=0.99)).pitfall == "process-spinning"
    assert "lock" in verdict(one_missing("lock", blocked_in="waiting for a lock")).sentence


def test_a_stopped_process_is_frozen_after_two_seconds_and_not_proven() -> None:
    job = one_missing("sleep")
    job[2].set(state="stopped").set_thread(stable_for=2.1)
    job.facts |= {"stalled": False}
    found = verdict(job)
    assert (found.pitfall, found.culprits, found.proven) == ("process-frozen", (2,), False)
    job[2].set_thread(stable_for=0.8).set(last_change=job.taken_at - 0.8)
    assert diagnose(job.snapshot()).verdict is None


def test_a_stuck_loader_worker_gives_its_own_line() -> None:
    job = one_missing("sleep")
    job[2].doing("data", job.line("reduce"), torch_frame("utils/data/dataloader.py", "_try_get_data"))
    idle = (torch_frame("utils/data/_utils/worker.py", "_worker_loop"), frame(1))
    stuck = (frame(job.line("sleep"), "__getitem__"), torch_frame("utils/data/_utils/fetch.py", "fetch"))
    job[2].child("loader-worker", *idle).child("loader-worker", *stuck)
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("loader-stalled", (2,))
    assert found.where is not None and found.where.line == job.line("sleep")


def test_a_rank_in_the_compiler_is_compile_skew() -> None:
    job = one_missing("sleep")
    job[2].doing("forward", job.line("sleep"), Frame(f"{TORCH}/_inductor/compile_fx.py", 5, "compile_fx"), busy=0.9)
    assert verdict(job).pitfall == "compile-skew"


def test_in_a_grid_of_groups_only_the_sleeping_rank_is_the_root() -> None:
    job = Job(4, SLEEP)
    rows = [job.group(0, 1), job.group(2, 3)]
    columns = [job.group(0, 2), job.group(1, 3)]
    reduce = job.line("reduce")
    job[2].waits_in("all_reduce", reduce, rows[1])
    job[0].collective("all_reduce", reduce, rows[0]).waits_in("all_reduce", reduce, columns[0])
    job[1].collective("all_reduce", reduce, rows[0]).waits_in("all_reduce", reduce, columns[1])
    job[3].doing("idle", job.line("sleep"), blocked_in="sleeping")
    found = verdict(job)
    assert (found.pitfall, found.culprits, found.waiting) == ("process-stuck", (3,), (0, 1, 2))


def test_two_groups_in_two_orders_are_a_circle_of_all() -> None:
    job = Job(2, SLEEP)
    one, two = job.group(0, 1), "0-1#1"
    job.subgroups[two] = (0, 1)
    job[0].waits_in("all_reduce", 3, one)
    job[1].waits_in("all_reduce", 4, two)
    found = verdict(job.at_once())
    assert (found.pitfall, found.culprits, found.proven) == ("group-order-inversion", (0, 1), True)


def test_a_receive_without_a_send_names_the_sender_that_went_past() -> None:
    job = Job(2, SLEEP)
    job[0].waits_in("barrier", 3)
    job[1].recv(0, 4).waits()
    found = verdict(job)
    assert found.pitfall == "unmatched-send-recv"
    assert found.culprits == (0,)
    assert found.where is not None and found.where.line == 4


def test_head_to_head_sends_are_unmatched() -> None:
    job = Job(2, SLEEP)
    job[0].send(1, 3).waits()
    job[1].send(0, 3).waits()
    found = verdict(job.at_once())
    assert (found.pitfall, found.culprits) == ("unmatched-send-recv", (0, 1))


def test_a_rank_that_left_early_is_proven_at_once() -> None:
    job = Job(3, SLEEP, backend="nccl")
    for rank in (0, 1):
        job[rank].collective("all_reduce", 3).waits_in("all_reduce", 3)
    job[2].collective("all_reduce", 3).exits(0, 4)
    found = verdict(job.at_once())
    assert (found.pitfall, found.culprits, found.proven) == ("rank-left-early", (2,), True)
    assert found.where is not None and found.where.line == 4


def test_all_in_the_same_operation_names_nobody() -> None:
    job = Job(3, SLEEP)
    for rank in range(3):
        job[rank].waits_in("all_reduce", 3)
    report = diagnose(job.snapshot())
    assert report.verdict is None
    assert "ranks 0-2 are all in all_reduce at train.py:3" in str(report.data["unknown"])
    assert "ss -tnpi" in str(report.data["unknown"])
    assert diagnose(job.at_once().snapshot()).data == {}


@pytest.mark.parametrize(("workers", "pitfall"), [(0, "process-spinning"), (1, "loader-stalled")])
def test_a_rank_that_burns_a_core_over_its_own_batch_spins(workers: int, pitfall: str) -> None:
    job = Job(2, SLEEP)
    job[0].waits_in("all_reduce", 3)
    job[1].doing("data", 4, busy=1.0)
    for _ in range(workers):
        job[1].child("loader-worker")
    found = verdict(job)
    assert (found.pitfall, found.culprits) == (pitfall, (1,))
