"""Given ranks that could not be lined up, then it says which, and what the script or the launcher did."""

from __future__ import annotations

from rankcall.diagnose import diagnose
from rankcall.findings import Report, Verdict
from rankcall.snapshot import ExceptionNote

from .hand_made import Job

SCRIPT = """
def setup():
    os.environ["MASTER_PORT"] = "12355"  # <- port
    dist.init_process_group("gloo")  # <- init
def prepare():
    time.sleep(3600)  # <- sleep
"""


def report(job: Job, **facts: object) -> Report:
    return diagnose(job.snapshot(**facts))


def verdict(job: Job, **facts: object) -> Verdict:
    found = report(job, **facts).verdict
    assert found is not None
    return found


def in_init(job: Job, *ranks: int, **facts: object) -> Job:
    for rank in ranks:
        job[rank].event("init", job.line("init"), op="init_process_group").waits()
        job[rank].set(initialized="entered", **facts)
    return job


def test_a_rank_that_sleeps_before_init_is_missing_and_its_line_is_shown() -> None:
    job = in_init(Job(3, SCRIPT), 0, 1)
    job[2].set(initialized="no", claimed_rank=None).doing("idle", job.line("sleep"), blocked_in="sleeping")
    found = verdict(job)
    assert (found.pitfall, found.culprits, found.waiting, found.proven) == ("missing-rank", (2,), (0, 1), False)
    assert found.where is not None and found.where.line == job.line("sleep")
    assert "process 1002 sleeps" in found.sentence
    states = {row.rank: row.state for row in report(job).ranks}
    assert states == {0: "waiting", 1: "waiting", 2: "missing"}


def test_nobody_is_called_missing_before_the_limit() -> None:
    job = in_init(Job(3, SCRIPT), 0, 1).at_once()
    job[2].set(initialized="no", claimed_rank=None).doing("idle", job.line("sleep"))
    assert report(job).verdict is None


def test_a_rank_that_ended_before_init_is_missing_and_that_is_proven() -> None:
    job = in_init(Job(3, SCRIPT), 0, 1).at_once()
    job[2].set(initialized="no", claimed_rank=None).exits(0, job.line("sleep"))
    found = verdict(job)
    assert (found.pitfall, found.culprits, found.proven) == ("missing-rank", (2,), True)
    assert found.where is not None and found.where.line == job.line("sleep")


def test_a_world_size_larger_than_launched_is_said_as_such() -> None:
    job = in_init(Job(2, SCRIPT), 0, 1, world_size=3)
    found = verdict(job)
    assert found.pitfall in ("world-size-mismatch", "missing-rank")
    assert "3" in found.sentence


def test_ranks_that_disagree_on_the_world_size_are_named() -> None:
    job = in_init(Job(3, SCRIPT), 0, 2)
    in_init(job, 1, world_size=2)
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("world-size-mismatch", (1,))
    assert found.where is not None and found.where.line == job.line("init")


def test_two_processes_with_one_rank_are_both_shown() -> None:
    job = in_init(Job(2, SCRIPT), 0, 1)
    job[1].set(claimed_rank=0)
    found = verdict(job)
    assert (found.pitfall, found.culprits, found.proven) == ("duplicate-rank", (0,), True)
    assert "1000" in found.sentence and "1001" in found.sentence
    assert [row.pid for row in report(job).ranks if row.rank == 0] == [1000, 1001]


def test_a_port_written_over_in_the_script_is_named_at_that_line() -> None:
    job = in_init(Job(2, SCRIPT), 0, 1, master="127.0.0.1:12355")
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("fixed-master-port", (0, 1))
    assert "12355" in found.sentence and "29500" in found.sentence and "nobody listens" in found.sentence
    assert found.where is not None and found.where.line == job.line("port")


def test_a_port_held_by_a_stranger_names_the_stranger() -> None:
    job = in_init(Job(2, SCRIPT), 0, 1, master="tcp://127.0.0.1:4711", uses_agent_store=False)
    job.listens(4711, 77, "python -m http.server 4711")
    found = verdict(job)
    assert found.pitfall == "port-in-use"
    assert "process 77" in found.sentence and "http.server" in found.sentence


def test_the_launchers_own_failure_is_the_verdict_when_no_rank_ran() -> None:
    job = Job(2, SCRIPT)
    job.ranks = []
    job.listens(29500, 66, "old train.py")
    error = ExceptionNote(
        "DistNetworkError",
        "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, "
        "code: -98, name: EADDRINUSE, message: address already in use",
    )
    found = verdict(job, launcher_error=error, reason="end", outcome="crashed", stalled=False)
    assert (found.pitfall, found.culprits) == ("port-in-use", ())
    assert "29500" in found.sentence and "process 66" in found.sentence
    assert any("kill 66" in fix for fix in found.fix)


def test_a_rank_nobody_started_has_a_row_of_its_own() -> None:
    job = in_init(Job(2, SCRIPT), 0, 1, world_size=3)
    found = report(job, world_size=None)
    assert found.verdict is not None and found.verdict.culprits == (2,)
    assert [(row.rank, row.state) for row in found.ranks] == [(0, "waiting"), (1, "waiting"), (2, "missing")]


def test_an_exception_in_init_beats_the_waiting_of_the_others() -> None:
    job = in_init(Job(2, SCRIPT), 1)
    job[0].event("init", job.line("init")).set(initialized="entered")
    job[0].raises("DistNetworkError", "EADDRINUSE, address already in use, port: 4711", job.line("init"))
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("port-in-use", (0,))


def test_processes_without_a_rank_do_not_disturb() -> None:
    job = Job(2, SCRIPT)
    job[0].doing("idle", job.line("sleep"), busy=0.9)
    job[1].set(launcher_rank=None, claimed_rank=None, initialized="no").doing("idle", job.line("sleep"))
    found = report(job, world_size=1)
    assert found.verdict is None
    assert [row.rank for row in found.ranks] == [0]


def test_ranks_started_by_hand_are_measured_by_what_most_of_them_say() -> None:
    job = in_init(Job(3, SCRIPT), 0, 1, 2, uses_agent_store=False)
    for rank in range(3):
        job[rank].set(world_size=4 if rank == 2 else 3)
    found = verdict(job, world_size=4)
    assert (found.pitfall, found.culprits) == ("world-size-mismatch", (2,))
    assert "ranks 0, 1 say 3 and rank 2 says 4; 3 processes have come" in found.sentence
