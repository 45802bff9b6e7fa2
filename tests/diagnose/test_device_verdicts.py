"""Given ranks on devices that run ahead of their hosts, then what is queued is not what is waited for."""

from __future__ import annotations

from rankcall.diagnose import diagnose
from rankcall.findings import Report, Verdict

from .hand_made import Job, torch_frame

SCRIPT = """
def main():
    for x in loader:  # <- loop
        model(x).backward()  # <- train
        optimizer.step()  # <- step
        total += loss.item()  # <- item
    dist.barrier()  # <- barrier
    with open("/data/next") as file:  # <- open
        pass
"""


def report(job: Job, **facts: object) -> Report:
    return diagnose(job.snapshot(**facts))


def verdict(job: Job, **facts: object) -> Verdict:
    found = report(job, **facts).verdict
    assert found is not None
    return found


def queued(job: Job, rank: int, finished: int, ahead: int, line: str = "item") -> None:
    """A rank whose host is in a device synchronisation: `ahead` operations are queued behind `finished` done ones."""
    key = job.world_group
    for _ in range(finished + ahead):
        job[rank].collective("all_reduce", job.line("train"), numel=512)
    job[rank].finished[key] = finished
    job[rank].doing("idle", job.line(line), busy=0.99)  # CUDA spins while it waits


def test_hosts_in_item_wait_for_the_rank_that_queued_less() -> None:
    job = Job(4, SCRIPT, backend="nccl")
    for rank in (0, 1, 3):
        queued(job, rank, finished=8, ahead=2)
    queued(job, 2, finished=8, ahead=0, line="open")
    job[2].doing("idle", job.line("open"), blocked_in="opening a file")
    found = verdict(job)
    assert (found.pitfall, found.culprits, found.waiting) == ("process-stuck", (2,), (0, 1, 3))
    assert found.where is not None and found.where.line == job.line("open")


def test_a_spinning_host_is_not_process_spinning_when_its_device_waits() -> None:
    job = Job(2, SCRIPT, backend="nccl")
    queued(job, 0, finished=3, ahead=1)
    queued(job, 1, finished=3, ahead=0)
    job[1].doing("data", job.line("loop"), torch_frame("utils/data/dataloader.py", "_get_data"))
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("loader-stalled", (1,))
    states = {row.rank: row.state for row in report(job).ranks}
    assert states == {0: "waiting", 1: "loading"}


def test_queued_operations_of_a_rank_that_moves_are_no_wait() -> None:
    job = Job(2, SCRIPT, backend="nccl").at_once()
    for rank in (0, 1):
        queued(job, rank, finished=5, ahead=3)
        job[rank].moving()
    assert report(job).verdict is None


def test_a_killed_rank_on_nccl_leaves_the_others_waiting_and_is_named() -> None:
    job = Job(3, SCRIPT, backend="nccl").at_once()
    for rank in (0, 1):
        queued(job, rank, finished=4, ahead=1)
    queued(job, 2, finished=4, ahead=0)
    job[2].dies(9)
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("crashed-by-signal", (2,))


def test_an_early_exit_on_nccl_is_proven_while_the_others_wait() -> None:
    job = Job(3, SCRIPT, backend="nccl").at_once()
    for rank in (0, 1):
        queued(job, rank, finished=4, ahead=1)
    queued(job, 2, finished=4, ahead=0)
    job[2].exits(0, job.line("item"))
    found = verdict(job)
    assert (found.pitfall, found.culprits, found.proven) == ("rank-left-early", (2,), True)


def test_different_operations_on_one_number_are_a_mismatch_on_devices_too() -> None:
    job = Job(3, SCRIPT, backend="nccl")
    for rank in range(3):
        for _ in range(4):
            job[rank].collective("all_reduce", job.line("train"), numel=512)
        job[rank].collective("all_gather" if rank == 1 else "all_reduce", job.line("item"), numel=512)
        job[rank].finished[job.world_group] = 4
        job[rank].doing("idle", job.line("item"))
    found = verdict(job)
    assert (found.pitfall, found.culprits, found.proven) == ("collective-mismatch", (1,), True)


def test_a_gloo_group_beside_nccl_is_judged_by_its_own_numbers() -> None:
    job = Job(3, SCRIPT, backend="nccl")
    control = "0-2#cpu"
    job.subgroups[control] = (0, 1, 2)
    for rank in range(3):
        queued(job, rank, finished=6, ahead=0)
    for rank in (0, 1):
        job[rank].collective("broadcast", job.line("item"), control, root=0)
        job[rank].waits_in("barrier", job.line("barrier"), control)
    job[2].collective("broadcast", job.line("item"), control, root=0)
    job[2].doing("idle", job.line("open"), blocked_in="opening a file")
    found = verdict(job)
    assert (found.pitfall, found.culprits, found.waiting) == ("process-stuck", (2,), (0, 1))


def test_a_rank_whose_device_has_its_own_earlier_operation_pending_is_an_echo() -> None:
    """Two groups on one device: rank 1 cannot reach the world's operation before its pair's one is done."""
    job = Job(3, SCRIPT, backend="nccl")
    pair = job.group(1, 2)
    for rank in range(3):
        for _ in range(3):
            job[rank].collective("all_reduce", job.line("train"))
        job[rank].finished[job.world_group] = 3
    job[0].collective("all_reduce", job.line("train")).doing("idle", job.line("item"))
    job[1].collective("all_reduce", job.line("train"), pair).doing("idle", job.line("item"))
    job[1].finished[pair] = 0
    job[2].finished[pair] = 0
    job[2].doing("idle", job.line("open"), blocked_in="opening a file")
    found = verdict(job)
    assert (found.culprits, found.waiting) == ((2,), (0, 1))


def test_without_a_dump_the_line_that_synchronises_and_the_numbers_tell() -> None:
    job = Job(3, SCRIPT, backend="nccl")
    for rank, ahead in ((0, 2), (1, 2), (2, 0)):
        queued(job, rank, finished=5, ahead=ahead)
        job[rank].finished.clear()
    job[2].doing("idle", job.line("open"), blocked_in="opening a file")
    found = verdict(job)
    assert (found.pitfall, found.culprits, found.waiting) == ("process-stuck", (2,), (0, 1))
