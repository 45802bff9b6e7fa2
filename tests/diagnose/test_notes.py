"""Given a job that completed, then what was slow or silently wrong is a note or a warning, never a verdict."""

from __future__ import annotations

from rankcall.diagnose import diagnose
from rankcall.findings import Finding

from .hand_made import Job
from .test_parting_verdicts import NAN_GUARD, train

LOOP = """
def main():
    x = load()
    model(x).backward()  # <- train
    optimizer.step()  # <- step
    torch.save(model.state_dict(), "a.pt")  # <- save
    dist.barrier()  # <- barrier
    dist.all_reduce(x, op=MAX)  # <- reduce
"""


def findings(job: Job) -> list[Finding]:
    report = diagnose(job.completed().snapshot())
    assert report.verdict is None
    return list(report.findings)


def paced(own_ms: dict[int, float], steps: int = 20) -> Job:
    """Ranks that take so long for a step of their own; the others wait for the slowest in backward."""
    job = Job(len(own_ms), LOOP)
    slowest = max(own_ms.values()) / 1000
    for rank, own in own_ms.items():
        for _ in range(steps):
            begin = job[rank].time
            job[rank].forward(job.line("train"))
            job[rank].time = begin + own / 1000
            job[rank].backward(job.line("train"))
            job[rank].time = begin + slowest + 0.005
            job[rank].step(job.line("step"))
            job[rank].time = begin + slowest + 0.006
        job[rank].finishes()
    return job


def test_a_rank_that_works_three_times_as_long_is_a_straggler_and_only_a_note() -> None:
    found = findings(paced({0: 30, 1: 32, 2: 95, 3: 31}))
    assert [(f.pitfall, f.severity, f.ranks) for f in found] == [("straggler", "note", (2,))]
    assert "ms a step" in found[0].message


def test_ranks_of_nearly_equal_pace_are_not_worth_a_word() -> None:
    assert findings(paced({0: 30, 1: 41, 2: 35})) == []


def test_a_few_milliseconds_are_noise_whatever_the_ratio() -> None:
    assert findings(paced({0: 1, 1: 9})) == []


def test_a_few_steps_prove_nothing() -> None:
    assert findings(paced({0: 30, 1: 300}, steps=4)) == []


def test_a_long_save_that_others_waited_for_is_a_note() -> None:
    job = Job(2, LOOP)
    for rank in (0, 1):
        job[rank].train(3, job.line("train"), job.line("train"), job.line("step"))
    job[0].event("save", job.line("save"))
    job[0].time += 8
    job[1].collective("barrier", job.line("barrier"))
    job[1].time += 8
    job[0].collective("barrier", job.line("barrier"))
    for rank in (0, 1):
        job[rank].event("destroy", 1).finishes()
    found = findings(job)
    assert [(f.pitfall, f.severity, f.ranks) for f in found] == [("slow-checkpoint", "note", (0,))]
    assert found[0].where is not None and found[0].where.line == job.line("save")


def test_a_long_save_by_all_ranks_at_once_is_no_note() -> None:
    job = Job(2, LOOP)
    for rank in (0, 1):
        job[rank].event("save", job.line("save"))
        job[rank].time += 8
        job[rank].collective("barrier", job.line("barrier")).finishes()
    assert findings(job) == []


def test_another_reduction_is_a_silent_mismatch_and_a_warning() -> None:
    job = Job(3, LOOP)
    for rank in range(3):
        op = "MAX" if rank == 1 else "SUM"
        job[rank].collective("all_reduce", job.line("reduce"), reduce_op=op).finishes()
    report = diagnose(job.completed().snapshot())
    assert report.verdict is None and report.exit_code == 1
    assert [(f.pitfall, f.severity, f.ranks) for f in report.findings] == [("collective-mismatch", "warning", (1,))]
    assert "No error came of it" in report.findings[0].message
    assert "MAX" in report.findings[0].message


def test_an_evaluation_loader_or_uneven_counts_alone_are_nothing() -> None:
    job = Job(2, LOOP)
    for rank in (0, 1):
        job[rank].train(12 + 3 * rank, job.line("train"), job.line("train"), job.line("step")).finishes()
    assert findings(job) == []


def test_a_skipped_backward_that_hurt_nobody_is_a_note_with_its_line() -> None:
    job = Job(2, NAN_GUARD)
    train(job, [0], 31)
    train(job, [1], 12)
    job[1].batch(job.line("loop")).forward(job.line("forward"))
    train(job, [1], 18)
    for rank in (0, 1):
        job[rank].collective("barrier", job.line("barrier")).finishes()
    found = findings(job)
    assert [(f.pitfall, f.severity, f.ranks) for f in found] == [("data-dependent-skip", "note", (1,))]
    assert found[0].where is not None and found[0].where.line == job.line("guard")


def test_work_behind_a_collective_counts_from_when_the_last_rank_had_arrived() -> None:
    job = Job(2, LOOP)
    begin = job.taken_at - 90
    for step in range(15):
        for rank in (0, 1):
            # Rank 1 comes to the collective as soon as its last step is done, rank 0 after its histograms.
            job[rank].time = begin + 0.4 * step - (0.35 if rank and step else 0.0)
            job[rank].backward(job.line("train"), 0).collective("all_reduce", job.line("reduce"))
            job[rank].time = begin + 0.4 * step + 0.03 + (0.3 if rank == 0 else 0.0)
            job[rank].step(job.line("step"))
    for rank in (0, 1):
        job[rank].finishes()
    found = findings(job)
    assert [(f.pitfall, f.severity, f.ranks) for f in found] == [("straggler", "note", (0,))]


def test_waiting_in_a_collective_for_a_late_rank_is_no_work() -> None:
    job = Job(3, LOOP)
    for rank in range(3):
        for step in range(15):
            begin = job[0].job.taken_at - 90 + 0.4 * step
            job[rank].time = begin
            job[rank].backward(job.line("train"), 0)
            job[rank].time = begin + (0.3 if rank == 2 else 0.02)
            job[rank].collective("all_reduce", job.line("reduce"))
            job[rank].time = begin + 0.31
            job[rank].step(job.line("step"))
        job[rank].finishes()
    assert all(found.ranks == (2,) for found in findings(job))
