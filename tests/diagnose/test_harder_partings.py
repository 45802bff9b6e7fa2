"""Given programs that parted in less obvious ways, then the rank, its pitfall and its line are still found."""

from __future__ import annotations

from rankcall.diagnose import diagnose
from rankcall.findings import Verdict
from rankcall.snapshot import ExceptionNote, Wait

from .hand_made import Job, frame, torch_frame


def verdict(job: Job, **facts: object) -> Verdict:
    report = diagnose(job.snapshot(**facts))
    assert report.verdict is not None
    return report.verdict


STEP_FUNCTION = """
class Task:
    def training_step(self, batch):
        if batch.sum() == 0:  # <- guard
            return None
        self.model(batch).mean().backward()  # <- train
        self.opt.step()  # <- step
    def run(self, data):
        for i, batch in enumerate(data):  # <- loop
            self.training_step(batch)
        dist.all_reduce(n)  # <- after
"""


def test_a_return_before_the_forward_skips_a_batch() -> None:
    job = Job(3, STEP_FUNCTION)
    train, step = job.line("train"), job.line("step")
    for rank in range(3):
        for _ in range(14):
            job[rank].forward(train, function="training_step").backward(train, function="training_step").step(step)
    for rank in (0, 2):
        job[rank].forward(train, function="training_step").backward(train, function="training_step").waits_in_cpp()
    job[1].waits_in("all_reduce", job.line("after"), function="run")
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("data-dependent-skip", (1,))
    assert found.where is not None and found.where.line == job.line("guard")


PATIENCE = """
def main():
    while epoch < 12:
        for x in loader:  # <- loop
            model(x).backward()  # <- train
            opt.step()  # <- step
        if stop(validation):  # <- guard
            break
    dist.all_gather_object(out, epoch)  # <- after
"""


def test_an_epoch_that_ended_for_all_is_no_uneven_shard_but_an_early_stop() -> None:
    job = Job(2, PATIENCE)
    for rank in (0, 1):
        for _ in range(3):
            job[rank].train(5, job.line("train"), job.line("train"), job.line("step"), job.line("loop"))
            job[rank].loader_end(job.line("loop"))
    job[0].batch(job.line("loop")).forward(job.line("train")).backward(job.line("train")).waits_in_cpp()
    job[1].waits_in("all_gather", job.line("after"), outer="all_gather_object")
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("data-dependent-skip", (1,))
    assert found.where is not None and found.where.line == job.line("guard") + 1


METRICS = """
def metrics(found):
    if not found:  # <- guard
        return 0.0
    dist.all_reduce(t)  # <- metric
for epoch in range(5):
    for _ in range(4):
        dist.all_reduce(x)  # <- train
    metrics(things)
"""


def test_calls_that_match_on_the_wire_part_at_their_lines() -> None:
    """Rank 2 returns before the metric; its next gradient meets the others' metric, of another size."""
    job = Job(4, METRICS)
    for rank in range(4):
        for epoch in range(4):
            for _ in range(4):
                job[rank].collective("all_reduce", job.line("train"), numel=10)
            if epoch < 3:
                job[rank].collective("all_reduce", job.line("metric"), function="metrics", numel=1)
    job[2].collective("all_reduce", job.line("train"), numel=10).echoes(job.line("train"))
    for rank in (0, 1, 3):
        job[rank].collective("all_reduce", job.line("metric"), function="metrics", numel=1)
    job[0].echoes(job.line("metric"))
    job[1].aborts()
    job[3].echoes(job.line("metric"))
    found = verdict(job.crashed())
    assert (found.pitfall, found.culprits) == ("lone-collective", (2,))
    assert found.where is not None and found.where.line == job.line("guard")


def test_of_two_ranks_the_one_that_leaves_the_habit_is_named() -> None:
    job = Job(2, METRICS)
    for rank in (0, 1):
        for epoch in range(4):
            for _ in range(4):
                job[rank].collective("all_reduce", job.line("train"), numel=10)
            if epoch < 3:
                job[rank].collective("all_reduce", job.line("metric"), function="metrics", numel=1)
    job[0].collective("all_reduce", job.line("metric"), function="metrics", numel=1).aborts()
    job[1].collective("all_reduce", job.line("train"), numel=10).echoes(job.line("train"))
    found = verdict(job.crashed())
    assert (found.pitfall, found.culprits) == ("lone-collective", (1,))


CLEANUP = """
def main():
    try:
        for step in range(16):
            loss = model(tokenize(text))  # <- forward
            loss.backward()  # <- backward
            optimizer.step()  # <- step
    finally:
        dist.barrier()  # <- barrier
def tokenize(text):
    return int(text)  # <- raise
"""


def test_an_exception_held_back_by_a_finally_is_the_programs_error() -> None:
    job = Job(3, CLEANUP)
    for rank in range(3):
        job[rank].train(9, job.line("forward"), job.line("backward"), job.line("step"))
    for rank in (0, 2):
        job[rank].forward(job.line("forward")).backward(job.line("backward")).waits_in_cpp()
    note = ExceptionNote("ValueError", "invalid literal", (frame(5), frame(job.line("raise"), "tokenize")))
    job[1].event("exception", job.line("barrier"), op="ValueError").set(handled=(note,))
    job[1].waits_in("barrier", job.line("barrier"))
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("program-error", (1,))
    assert found.where is not None and found.where.line == job.line("raise")
    assert "finally" in found.sentence


SUPPRESSED = """
def main():
    with contextlib.suppress(OSError):  # <- suppress
        for step in range(30):
            model(sample()).backward()  # <- train
            optimizer.step()  # <- step
"""


def test_a_fixed_loop_left_through_a_suppressed_error() -> None:
    job = Job(3, SUPPRESSED)
    for rank in range(3):
        job[rank].train(10, job.line("train"), job.line("train"), job.line("step"))
    job[2].finishes()
    for rank in (0, 1):
        job[rank].forward(job.line("train")).backward(job.line("train")).echoes(job.line("train"))
    found = verdict(job.crashed())
    assert (found.pitfall, found.culprits) == ("rank-left-early", (2,))
    assert found.where is not None and found.where.line == job.line("suppress")


EVERYBODY_EVALUATES = """
def main():
    for x in loader:  # <- loop
        model(x).backward()  # <- train
        optimizer.step()  # <- step
    for x in validation:
        model(x)  # <- evaluation
"""


def test_a_rank_that_evaluates_first_because_its_shard_is_shorter_has_uneven_steps() -> None:
    job = Job(3, EVERYBODY_EVALUATES)
    for rank in range(3):
        job[rank].train(6, job.line("train"), job.line("train"), job.line("step"), job.line("loop"))
    job[1].loader_end(job.line("loop")).eval_forward(job.line("evaluation"), 1).waits_in_cpp("broadcast", numel=8)
    for rank in (0, 2):
        job[rank].batch(job.line("loop")).forward(job.line("train")).backward(job.line("train")).waits_in_cpp()
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("uneven-steps", (1,))


MONITORED = """
for x in loader:  # <- loop
    model(x).backward()  # <- train
    optimizer.step()  # <- step
dist.monitored_barrier()  # <- barrier
"""


def test_a_monitored_barrier_has_no_number_and_still_parts_the_ranks() -> None:
    job = Job(2, MONITORED)
    for rank in (0, 1):
        job[rank].train(6, job.line("train"), job.line("train"), job.line("step"), job.line("loop"))
    job[0].batch(job.line("loop")).forward(job.line("train")).backward(job.line("train")).waits_in_cpp(asked=False)
    job[1].loader_end(job.line("loop")).event("collective", job.line("barrier"), op="monitored_barrier").waits()
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("uneven-steps", (1,))


SHARDED_SAVE = """
def save(model):
    weights = {n: t.full_tensor() for n, t in model.state_dict().items()}  # <- full
def main():
    model(x).backward()  # <- train
    optimizer.step()  # <- step
    if dist.get_rank() == 0:
        save(model)  # <- call
    dist.barrier()  # <- barrier
"""


def test_a_functional_collective_that_only_the_flight_recorder_saw_is_a_sharded_save() -> None:
    job = Job(2, SHARDED_SAVE)
    for rank in (0, 1):
        job[rank].train(4, job.line("train"), job.line("train"), job.line("step"))
    number = job[0].number(job.world_group)
    wait = Wait("collective", "gloo:all_gather", job.world_group, "gloo", number, outer="idle", numel=18,
                source="flight-recorder")  # fmt: skip
    job[0].set_thread(
        phase="idle",
        wait=wait,
        stack=(torch_frame("_ops.py", "__call__"), frame(job.line("full"), "save"), frame(job.line("call"))),
    )
    job[1].waits_in("barrier", job.line("barrier"))
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("sharded-save-on-one-rank", (0,))
    assert found.where is not None and found.where.line == job.line("full")


def test_ranks_that_were_ended_by_the_launcher_after_a_hang_are_judged_as_they_stood() -> None:
    job = Job(2, SHARDED_SAVE)
    for rank in (0, 1):
        job[rank].train(4, job.line("train"), job.line("train"), job.line("step"))
    job[0].waits_in("barrier", job.line("barrier"))
    job[1].doing("idle", job.line("call"), blocked_in="waiting for a lock")
    for rank in (0, 1):
        job[rank].killed()
    found = verdict(job, outcome="hung")
    assert (found.pitfall, found.culprits, found.waiting) == ("process-stuck", (1,), (0,))


def test_a_rank_that_had_said_goodbye_before_the_launchers_signal_has_left() -> None:
    job = Job(2, EVERYBODY_EVALUATES)
    for rank in (0, 1):
        job[rank].train(4, job.line("train"), job.line("train"), job.line("step"), job.line("loop"))
    job[1].loader_end(job.line("loop")).finishes()
    note = job[1].facts["exit_note"]
    job[1].killed().set(exit_note=note)
    job[0].batch(job.line("loop")).forward(job.line("train")).backward(job.line("train")).waits_in_cpp()
    found = verdict(job, outcome="hung")
    assert (found.pitfall, found.culprits) == ("uneven-steps", (1,))


BROKEN_BACKWARD = """
def main():
    for step in range(20):
        loss = model(x)  # <- forward
        try:
            loss.backward()  # <- backward
        except RuntimeError:  # <- except
            continue
        opt.step()  # <- step
    dist.barrier()  # <- barrier
"""


def test_an_exception_inside_backward_that_was_swallowed_leaves_its_collectives_out() -> None:
    job = Job(3, BROKEN_BACKWARD)
    for rank in range(3):
        job[rank].train(6, job.line("forward"), job.line("backward"), job.line("step"))
    job[0].forward(job.line("forward")).backward(job.line("backward"), buckets=0)
    job[0].event("exception", job.line("backward"), op="RuntimeError")
    for rank in (1, 2):
        job[rank].train(1, job.line("forward"), job.line("backward"), job.line("step"))
    for rank in range(3):
        job[rank].train(12, job.line("forward"), job.line("backward"), job.line("step"))
    for rank in (1, 2):
        job[rank].forward(job.line("forward")).backward(job.line("backward")).waits_in_cpp()
    job[0].forward(job.line("forward")).backward(job.line("backward")).step(job.line("step"))
    job[0].waits_in("barrier", job.line("barrier"))
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("data-dependent-skip", (0,))
    assert found.where is not None and found.where.line == job.line("except")
    assert "step 6" in found.sentence
