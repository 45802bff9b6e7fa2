"""Given ranks that ended badly, then the first one's own cause is named, whatever the others shout."""

from __future__ import annotations

import pytest

from rankcall.diagnose import diagnose
from rankcall.diagnose.exceptions import ROWS, Row, pitfall_of
from rankcall.findings import Verdict
from rankcall.snapshot import ExceptionNote

from .hand_made import Job

LOOP = """
def main():
    check(y)  # <- check
    model(x).backward()  # <- backward
"""


def verdict(job: Job, **facts: object) -> Verdict:
    report = diagnose(job.snapshot(**facts))
    assert report.verdict is not None
    return report.verdict


def crash(world: int = 3) -> Job:
    job = Job(world, LOOP)
    for rank in range(world):
        job[rank].forward(job.line("backward")).backward(job.line("backward"))
    return job.crashed()


def test_the_first_exception_that_is_no_echo_is_the_root() -> None:
    job = crash()
    job[0].echoes(job.line("backward"))
    job[1].raises("ValueError", "label 11 is not one of 10 classes", 4, job.line("check"))
    job[2].echoes(job.line("backward"), at=-0.5)
    found = verdict(job)
    assert (found.pitfall, found.culprits, found.waiting) == ("program-error", (1,), (0, 2))
    assert found.where is not None and found.where.line == job.line("check")
    assert "label 11" in found.sentence and found.proven


def test_the_same_exception_everywhere_is_everybodys() -> None:
    job = crash()
    for rank in range(3):
        job[rank].raises("KeyError", "'epoch'", job.line("check"), at=0.01 * rank)
    assert verdict(job).culprits == (0, 1, 2)


def test_a_wrapped_echo_is_an_echo() -> None:
    job = crash()
    job[0].raises("TrainingError", "gave up", 4, chain=("RuntimeError: Connection closed by peer [::1]:5",), at=-1)
    job[1].raises("ValueError", "bad", job.line("check"))
    job[2].killed()
    assert verdict(job).culprits == (1,)


def test_sigkill_without_evidence_keeps_out_of_memory_as_a_rival() -> None:
    job = crash()
    job[2].dies(9)
    job[0].echoes(job.line("backward"))
    job[1].killed()
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("crashed-by-signal", (2,))
    assert [rival.pitfall for rival in found.rivals] == ["host-out-of-memory"]
    assert found.where is not None and found.where.line == job.line("backward")


def test_sigkill_with_the_kernels_word_is_out_of_memory() -> None:
    job = crash()
    job[2].dies(9, oom_killed=True)
    job[0].echoes(job.line("backward"))
    job[1].killed()
    assert verdict(job).pitfall == "host-out-of-memory"


def test_unused_parameters_are_named() -> None:
    job = crash()
    for rank in range(3):
        job[rank].raises(
            "RuntimeError",
            "Expected to have finished reduction in the prior iteration before starting a new one.",
            job.line("backward"),
            parameters=("head.weight", "head.bias"),
        )
    found = verdict(job)
    assert found.pitfall == "unused-parameters"
    assert "head.weight" in found.why and "head.weight" in found.fix[0]


def test_a_rank_that_slept_while_the_others_timed_out_is_the_root() -> None:
    job = crash()
    for rank in (0, 1):
        job[rank].collective("barrier", 3).echoes(3, "Timed out waiting 8000ms for recv operation to complete")
    job[2].doing("idle", 4, blocked_in="sleeping").killed()
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("process-stuck", (2,))


def test_a_rank_at_work_when_the_limit_ran_out_points_to_the_limit() -> None:
    job = crash()
    for rank in (0, 1):
        job[rank].collective("barrier", 3).echoes(3, "Timed out waiting 5000ms for recv operation to complete")
    job[2].doing("evaluate", 4, busy=0.7).moving()
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("timeout-too-short", (2,))
    assert "5.0 s" in found.sentence


def test_the_holder_of_a_taken_port_is_named() -> None:
    job = crash().listens(4711, 99, "python dashboard.py")
    job[0].raises("DistNetworkError", "The server socket has failed to listen. port: 4711, name: EADDRINUSE", 3)
    job[1].killed()
    job[2].killed()
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("port-in-use", (0,))
    assert "process 99 (python dashboard.py)" in found.sentence
    assert any("kill 99" in fix for fix in found.fix)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.pitfall)
def test_each_row_of_the_table_knows_its_text_and_leaves_the_near_miss(row: Row) -> None:
    kind, _, message = row.bad.partition(": ")
    assert pitfall_of(ExceptionNote(kind, message))[0] == row.pitfall
    kind, _, message = row.good.partition(": ")
    assert pitfall_of(ExceptionNote(kind, message))[0] != row.pitfall
