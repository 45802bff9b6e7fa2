"""Given sends without receives, groups in different orders, or a skip that runs through a grid of groups."""

from __future__ import annotations

from rankcall.diagnose import diagnose
from rankcall.findings import Verdict

from .hand_made import Job, frame

PIPELINE = """
def stage(rank):
    if rank > 0:
        dist.recv(x, rank - 1)  # <- recv
    y = layer(x)
    if rank < 3 and not forgotten:
        dist.send(y, rank + 1)  # <- send
dist.barrier()  # <- barrier
lock.acquire()  # <- lock
group = dist.new_group([0, 1])  # <- group
"""


def verdict(job: Job, **facts: object) -> Verdict:
    report = diagnose(job.snapshot(**facts))
    assert report.verdict is not None
    return report.verdict


def test_a_stage_that_forgets_to_send_leaves_its_follower_waiting() -> None:
    job = Job(4, PIPELINE)
    send, recv, barrier = job.line("send"), job.line("recv"), job.line("barrier")
    job[0].send(1, send).send(1, send).waits_in("barrier", barrier)
    job[1].recv(0, recv).send(2, send).recv(0, recv).send(2, send).waits_in("barrier", barrier)
    job[2].recv(1, recv).send(3, send).recv(1, recv).waits_in("barrier", barrier)
    job[3].recv(2, recv).recv(2, recv).waits()
    found = verdict(job.at_once())
    assert (found.pitfall, found.culprits, found.waiting) == ("unmatched-send-recv", (2,), (0, 1, 3))
    assert "sent only 1" in found.sentence
    assert found.where is not None and found.where.line == recv


def test_tags_that_differ_are_both_said() -> None:
    job = Job(2, PIPELINE)
    job[0].send(1, job.line("send"), tag=5).waits()
    job[1].recv(0, job.line("recv"), tag=4).waits()
    found = verdict(job.at_once())
    assert (found.pitfall, found.culprits) == ("unmatched-send-recv", (0, 1))
    assert "tags differ" in found.sentence and "4" in found.sentence and "5" in found.sentence


def test_a_receiver_whose_sender_is_stuck_elsewhere_is_an_echo() -> None:
    job = Job(3, PIPELINE)
    job[2].recv(1, job.line("recv")).waits()
    job[1].recv(0, job.line("recv")).waits()
    job[0].doing("idle", job.line("lock"), blocked_in="waiting for a lock")
    found = verdict(job)
    assert (found.pitfall, found.culprits, found.waiting) == ("process-stuck", (0,), (1, 2))


def test_a_send_in_flight_is_answered_by_its_number_not_by_its_presence() -> None:
    """Rank 1 has received twice already; rank 0's second send is matched and only slow."""
    job = Job(2, PIPELINE).at_once()
    job[0].send(1, job.line("send")).send(1, job.line("send")).waits()
    job[1].recv(0, job.line("recv")).recv(0, job.line("recv")).doing("forward", job.line("lock"), busy=0.9)
    assert diagnose(job.snapshot()).verdict is None


def test_a_sender_that_has_ended_leaves_the_receive_unmatched() -> None:
    job = Job(2, PIPELINE)
    job[0].send(1, job.line("send")).finishes()
    job[1].recv(0, job.line("recv")).recv(0, job.line("recv")).echoes(job.line("recv"))
    found = verdict(job.crashed())
    assert (found.pitfall, found.culprits) == ("unmatched-send-recv", (0,))


def test_three_groups_in_a_ring_of_orders_are_one_circle() -> None:
    job = Job(3, PIPELINE)
    keys = [job.group(0, 1), job.group(1, 2), job.group(0, 2)]
    job[0].waits_in("all_reduce", 4, keys[0])
    job[1].waits_in("all_reduce", 4, keys[1])
    job[2].waits_in("all_reduce", 4, keys[2])
    found = verdict(job.at_once())
    assert (found.pitfall, found.culprits) == ("group-order-inversion", (0, 1, 2))
    assert "of ranks 0, 1" in found.sentence


def test_a_rank_behind_a_circle_is_no_part_of_it() -> None:
    job = Job(3, PIPELINE)
    pair = job.group(0, 1)
    other = "0-1#1"
    job.subgroups[other] = (0, 1)
    job[0].waits_in("all_reduce", 4, pair)
    job[1].waits_in("all_reduce", 5, other)
    job[2].waits_in("barrier", job.line("barrier"))
    found = verdict(job.at_once())
    assert (found.pitfall, found.culprits, found.waiting) == ("group-order-inversion", (0, 1), (2,))


def test_a_group_made_by_one_rank_only_is_named() -> None:
    job = Job(3, PIPELINE)
    job[0].event("new-group", job.line("group"), op="new_group").waits()
    for rank in (1, 2):
        job[rank].waits_in("barrier", job.line("barrier"))
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("group-created-out-of-order", (0,))
    assert found.where is not None and found.where.line == job.line("group")


def test_a_skip_that_runs_through_a_grid_of_groups_is_a_skip_not_an_inversion() -> None:
    """Rank 3 leaves out one backward; its row and column partners then wait for one another in a circle."""
    source = """
for x in loader:
    y = model(x)  # <- forward
    if bad(y):  # <- guard
        continue
    y.backward()  # <- backward
    dist.all_reduce(g, group=row)  # <- row
    dist.all_reduce(g, group=column)  # <- column
"""
    job = Job(4, source)
    rows = {0: job.group(0, 1), 2: job.group(2, 3)}
    columns = {0: job.group(0, 2), 1: job.group(1, 3)}
    for rank in range(4):
        row, column = rows[rank // 2 * 2], columns[rank % 2]
        for step in range(6):
            job[rank].forward(job.line("forward"))
            if rank == 3 and step == 4:
                continue
            job[rank].event("backward", job.line("backward"))
            job[rank].collective("all_reduce", job.line("row"), row)
            job[rank].collective("all_reduce", job.line("column"), column)
    job[3].finishes()
    job[2].waits()
    job[1].waits()
    job[0].waits()
    job[2].events.pop()
    job[2].numbers[columns[0]] -= 1
    job[2].waits()
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("data-dependent-skip", (3,))
    assert found.where is not None and found.where.line == job.line("guard")
    assert frame(1).line == 1


def test_a_held_barrier_is_no_match_for_another_group_of_the_same_members() -> None:
    job = Job(2, PIPELINE)
    again = "0-1#7"
    job.subgroups[again] = (0, 1)
    job[0].waits_in("barrier", job.line("barrier"))
    job[1].waits_in("barrier", job.line("barrier"), again)
    assert verdict(job.at_once()).pitfall == "group-order-inversion"


SERVER = """
def main():
    if rank == 0:
        for client in clients:
            dist.recv(g, src=client)  # <- collect
        for client in clients:
            dist.send(w, dst=client)  # <- answer
    else:
        dist.send(g, dst=0)  # <- give
        dist.recv(w, src=0)  # <- take
    dist.barrier()  # <- barrier
"""


def test_a_client_that_went_past_its_round_is_the_one_that_does_not_come() -> None:
    """The other clients wait for the server too, but it is only held up by the one that left."""
    job = Job(3, SERVER)
    collect, answer = job.line("collect"), job.line("answer")
    give, take, barrier = job.line("give"), job.line("take"), job.line("barrier")
    job[0].recv(1, collect).recv(2, collect).send(1, answer).send(2, answer).recv(1, collect).recv(2, collect).waits()
    job[1].send(0, give).recv(0, take).send(0, give).recv(0, take).waits()
    job[2].send(0, give).recv(0, take).waits_in("barrier", barrier)
    found = verdict(job.at_once())
    assert (found.pitfall, found.culprits, found.proven) == ("unmatched-send-recv", (2,), True)
    assert found.where is not None and found.where.line == collect
