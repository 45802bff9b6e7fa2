"""Given ranks whose programs parted, then the rank that did something else is named, and the line where it can."""

from __future__ import annotations

from rankcall.diagnose import diagnose
from rankcall.findings import Report

from .hand_made import Job

NAN_GUARD = """
import torch.distributed as dist
def main():
    model = DDP(net)
    for x, y in loader:  # <- loop
        loss = criterion(model(x), y)  # <- forward
        if not torch.isfinite(loss):  # <- guard
            continue
        loss.backward()  # <- backward
        optimizer.step()  # <- step
    dist.barrier()  # <- barrier
"""


def verdict(job: Job, **facts: object):  # type: ignore[no-untyped-def]
    report = diagnose(job.snapshot(**facts))
    assert report.verdict is not None
    return report.verdict


def train(job: Job, ranks, steps: int, batch: str | None = "loop") -> None:  # type: ignore[no-untyped-def]
    for rank in ranks:
        job[rank].train(
            steps,
            job.line("forward"),
            job.line("backward"),
            job.line("step"),
            job.line(batch) if batch else None,
        )


def nan_guard(world: int = 4, asked: bool = True) -> Job:
    """Rank 2 skips the backward of step 12; every later backward meets a neighbour's; at the end rank 2 waits alone."""
    job = Job(world, NAN_GUARD)
    train(job, [r for r in range(world) if r != 2], 30)
    for rank in (r for r in range(world) if r != 2):
        job[rank].batch(job.line("loop")).forward(job.line("forward")).backward(job.line("backward"))
        job[rank].waits_in_cpp(asked=asked)
    train(job, [2], 12)
    job[2].batch(job.line("loop")).forward(job.line("forward"))
    train(job, [2], 18)
    job[2].waits_in("barrier", job.line("barrier"))
    return job


def test_a_skipped_backward_is_a_data_dependent_skip_of_that_rank_at_its_guard() -> None:
    job = nan_guard()
    found = verdict(job)
    assert (found.pitfall, found.culprits, found.proven) == ("data-dependent-skip", (2,), True)
    assert found.where is not None and found.where.line == job.line("guard")
    assert found.waiting == (0, 1, 3)
    assert "31 forwards but 30 backwards" in found.sentence
    assert "the others 31 of both" in found.sentence
    assert "since step 12" in found.sentence
    assert "waits in barrier" in found.sentence


def test_a_skipped_backward_is_proven_before_anything_has_stalled() -> None:
    assert verdict(nan_guard().at_once()).pitfall == "data-dependent-skip"


def test_a_skipped_backward_is_found_without_the_flight_recorder_once_stalled() -> None:
    found = verdict(nan_guard(asked=False))
    assert (found.pitfall, found.culprits) == ("data-dependent-skip", (2,))


def test_a_shorter_shard_before_a_barrier_is_uneven_steps_of_the_ranks_with_fewer() -> None:
    job = Job(4, NAN_GUARD.replace("        if not torch.isfinite(loss):  # <- guard\n            continue\n", ""))
    train(job, range(4), 29)
    job[0].batch(job.line("loop")).forward(job.line("forward")).backward(job.line("backward")).waits_in_cpp()
    for rank in (1, 2, 3):
        job[rank].loader_end(job.line("loop")).waits_in("barrier", job.line("barrier"))
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("uneven-steps", (1, 2, 3))
    assert found.where is not None and found.where.line == job.line("loop")
    assert found.waiting == (0,)


def test_a_rank_that_ran_out_of_data_and_ended_is_uneven_steps_not_an_early_exit() -> None:
    job = Job(3, NAN_GUARD)
    train(job, range(3), 20)
    job[1].loader_end(job.line("loop")).finishes()
    for rank in (0, 2):
        job[rank].batch(job.line("loop")).forward(job.line("forward")).backward(job.line("backward"))
        job[rank].echoes(job.line("backward"), at=0.5)
    found = verdict(job.crashed())
    assert (found.pitfall, found.culprits) == ("uneven-steps", (1,))


BARRIER_ON_ZERO = """
def main():
    for step in range(20):
        loss = model(x)  # <- forward
        loss.backward()  # <- backward
        optimizer.step()  # <- step
        if step == 10 and dist.get_rank() == 0:
            dist.barrier()  # <- barrier
"""


def test_a_barrier_on_rank_0_is_a_lone_collective_of_rank_0() -> None:
    job = Job(3, BARRIER_ON_ZERO)
    train(job, range(3), 11, batch=None)
    job[0].waits_in("barrier", job.line("barrier"))
    for rank in (1, 2):
        job[rank].forward(job.line("forward")).backward(job.line("backward")).waits_in_cpp()
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("lone-collective", (0,))
    assert found.where is not None and found.where.line == job.line("barrier")
    assert "rank" in found.why


EVALUATION = """
def evaluate(model):
    with torch.no_grad():
        return model(x)  # <- evaluation
def main():
    for step in range(20):
        model(x).backward()  # <- train
        optimizer.step()  # <- step
    if rank == 0:
        evaluate(model)
    dist.barrier()  # <- barrier
"""


def test_a_wrapped_model_evaluated_on_rank_0_only_is_named_at_its_forward() -> None:
    job = Job(2, EVALUATION)
    for rank in (0, 1):
        job[rank].train(10, job.line("train"), job.line("train"), job.line("step"))
    job[0].eval_forward(job.line("evaluation"), 1, "evaluate").waits_in_cpp("broadcast", numel=51)
    job[1].waits_in("barrier", job.line("barrier"))
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("evaluation-on-one-rank", (0,))
    assert found.where is not None and found.where.line == job.line("evaluation")


BRANCHES = """
def share(value):
    if dist.get_rank() == 0:
        dist.reduce(value, dst=0)  # <- reduce
    else:
        dist.all_reduce(value)  # <- all_reduce
"""


def test_two_branches_with_different_operations_are_a_mismatch_of_the_minority() -> None:
    job = Job(4, BRANCHES)
    job[0].waits_in("reduce", job.line("reduce"), root=0)
    for rank in (1, 2, 3):
        job[rank].waits_in("all_reduce", job.line("all_reduce"))
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("collective-mismatch", (0,))
    assert found.where is not None and found.where.line == job.line("reduce")


def test_two_against_two_names_all_and_says_that_the_side_is_unknown() -> None:
    job = Job(4, BRANCHES)
    for rank in (0, 1):
        job[rank].waits_in("reduce", job.line("reduce"), root=0)
    for rank in (2, 3):
        job[rank].waits_in("all_reduce", job.line("all_reduce"))
    found = verdict(job)
    assert found.culprits == (0, 1, 2, 3)
    assert found.confidence <= 0.5 and found.proven
    assert found.rivals


EARLY_RETURN = """
def validate(samples):
    if len(samples) == 0:  # <- guard
        return None
    dist.all_reduce(total)  # <- all_reduce
def main():
    for epoch in range(4):
        for _ in range(5):
            model(x).backward()  # <- train
            optimizer.step()  # <- step
        validate(samples)
"""


def test_an_early_return_before_a_collective_is_named_at_its_condition() -> None:
    job = Job(4, EARLY_RETURN)
    for rank in range(4):
        job[rank].train(5, job.line("train"), job.line("train"), job.line("step"))
    for rank in (0, 1, 2):
        job[rank].waits_in("all_reduce", job.line("all_reduce"), function="validate")
    job[3].forward(job.line("train")).backward(job.line("train")).waits_in_cpp()
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("lone-collective", (3,))
    assert found.where is not None and found.where.line == job.line("guard")


def test_a_gather_of_other_size_names_the_rank_that_differs_not_the_one_that_aborts() -> None:
    job = Job(3, "all_gather(out, local)  # <- gather\n")
    for rank, numel in enumerate((20, 20, 17)):
        job[rank].collective("all_gather", job.line("gather"), numel=20)
        job[rank].collective("all_gather", job.line("gather"), numel=numel)
    job[0].echoes(job.line("gather"))
    job[1].aborts()
    job[2].echoes(job.line("gather"))
    found = verdict(job.crashed())
    assert (found.pitfall, found.culprits) == ("uneven-gather", (2,))
    assert "rank 1" in found.why


def test_of_two_ranks_the_one_that_left_its_own_habit_has_the_wrong_size() -> None:
    job = Job(2, "dist.all_reduce(features)  # <- reduce\n")
    for rank in (0, 1):
        for _ in range(5):
            job[rank].collective("all_reduce", job.line("reduce"), numel=128)
    job[0].collective("all_reduce", job.line("reduce"), numel=128).aborts()
    job[1].collective("all_reduce", job.line("reduce"), numel=96).echoes(job.line("reduce"))
    found = verdict(job.crashed())
    assert (found.pitfall, found.culprits) == ("shape-mismatch", (1,))


def report_of(job: Job) -> Report:
    return diagnose(job.snapshot())
