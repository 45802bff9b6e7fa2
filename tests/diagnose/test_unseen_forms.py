"""Given the same faults in other spellings (a conditional expression, a call in between), then the same verdicts."""

from __future__ import annotations

import msgspec
import pytest

from rankcall.diagnose import diagnose
from rankcall.diagnose.source import Program
from rankcall.findings import Verdict
from rankcall.snapshot import Frame, Thread

from .hand_made import SCRIPT, Job, frame, torch_frame


def verdict(job: Job) -> Verdict:
    report = diagnose(job.snapshot())
    assert report.verdict is not None
    return report.verdict


CHOICE_IN_A_LINE = """
def to_root(result):
    dist.gather_object(result, out, dst=0)  # <- root
def to_all(result):
    dist.all_gather_object(out, result)  # <- all
def main():
    last = rank == dist.get_world_size() - 1
    for number in range(4):
        table = to_all(result) if last and number == 2 else to_root(result)  # <- choice
"""
CHOICE_BY_CALLS = """
def to_root(result):
    dist.gather_object(result, out, dst=0)  # <- root
def to_all(result):
    dist.all_gather_object(out, result)  # <- all
def main():
    for number in range(4):
        if needs_all(number):
            to_all(result)  # <- choice
        else:
            to_root(result)
"""


@pytest.mark.parametrize("source", [CHOICE_IN_A_LINE, CHOICE_BY_CALLS])
def test_two_helpers_on_the_sides_of_one_condition_are_a_collective_mismatch(source: str) -> None:
    job = Job(4, source)
    for rank in range(4):
        job[rank].collective("gather", job.line("root"), function="to_root", outer="gather_object")
    for rank in range(3):
        job[rank].collective("gather", job.line("root"), function="to_root", outer="gather_object").waits()
    job[3].collective("all_gather", job.line("all"), function="to_all", outer="all_gather_object").waits()
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("collective-mismatch", (3,))
    assert found.where is not None and found.where.line == job.line("all")


def test_one_line_that_calls_two_operations_is_a_collective_mismatch() -> None:
    job = Job(3, "def main():\n    share = dist.reduce if flags[0] else dist.all_reduce\n    share(x)  # <- share\n")
    for rank in range(3):
        job[rank].collective("reduce" if rank == 1 else "all_reduce", job.line("share")).waits()
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("collective-mismatch", (1,))


LOOPS_IN_BRANCHES = """
def train(loader):
    for x in loader:
        dist.all_reduce(x)  # <- train
def validate(loader):
    for x in loader:
        dist.all_gather(out, x)  # <- validate
def main():
    for phase in ("train", "val"):
        if phase == "train":
            train(loaders[phase])
        else:
            validate(loaders[phase])
"""


def test_branches_that_hold_loops_are_no_choice_of_one_operation() -> None:
    program = Program({SCRIPT: LOOPS_IN_BRANCHES})
    train, validate = Frame(SCRIPT, 4, "train"), Frame(SCRIPT, 7, "validate")
    assert program.exclusive(program.path(train), program.path(validate)) is None


EARLY_STOPPING = """
def make_split(rank):
    g = torch.Generator().manual_seed(rank)
    x, y = torch.randn(64, 6, generator=g), torch.randn(64, generator=g)
    if rank == 3:
        y = -y
    return x, y
def main():
    x, y = make_split(rank)
    for epoch in range(args.epochs):
        for xb, yb in zip(x.split(16), y.split(16)):  # <- loop
            loss = model(xb)  # <- forward
            loss.backward()  # <- backward
            opt.step()  # <- step
        if stopper(validate(model.module, x, y)):
            break  # <- break
    dist.barrier()  # <- barrier
"""


def left_loop(source: str) -> Job:
    job = Job(4, source)
    for rank in range(4):
        job[rank].train(16, job.line("forward"), job.line("backward"), job.line("step"))
    for rank in range(3):
        job[rank].forward(job.line("forward")).backward(job.line("backward")).waits_in_cpp()
    job[3].waits_in("barrier", job.line("barrier"))
    return job


def test_equal_data_in_the_inner_loop_leaves_the_break_of_the_outer_one() -> None:
    job = left_loop(EARLY_STOPPING)
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("data-dependent-skip", (3,))
    assert found.where is not None and found.where.line == job.line("break")


@pytest.mark.parametrize(
    "cut",
    ["x = x[: 64 - rank]", "x = torch.randn(64 - 8 * rank, 6)", "x = torch.load(f'part{rank}.pt')",
     "if rank == 3:\n        x = x[:40]"],
)  # fmt: skip
def test_a_function_that_cuts_by_the_rank_gives_uneven_steps_all_the_same(cut: str) -> None:
    job = left_loop(EARLY_STOPPING.replace("    return x, y", f"    {cut}\n    return x, y"))
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("uneven-steps", (3,))
    assert found.where is not None and found.where.line == job.line("loop")


def test_a_break_that_all_ranks_agreed_on_explains_nothing() -> None:
    agreed = EARLY_STOPPING.replace(
        "        if stopper(validate(model.module, x, y)):",
        "        stop = torch.tensor(stopper(validate(model.module, x, y)))\n"
        "        dist.all_reduce(stop, op=dist.ReduceOp.MAX)\n        if stop.item():",
    )
    assert verdict(left_loop(agreed)).pitfall == "uneven-steps"


ROBUST_STEP = """
class Learner:
    def __init__(self):
        self.opt = torch.optim.SGD(net.parameters())
    def step(self, x):
        loss = net(x)
        loss.backward()  # <- backward
        dist.all_reduce(flat)  # <- reduce
        self.opt.step()  # <- step
def main():
    learner = Learner()
    for x in loader:  # <- loop
        try:
            learner.step(x)
        except RuntimeError:  # <- except
            failures += 1
    dist.all_reduce(total)  # <- total
"""


def test_a_step_that_failed_in_silence_is_placed_at_the_handler_around_the_call() -> None:
    job = Job(2, ROBUST_STEP)
    for rank in range(2):
        for step in range(12 - (rank == 0)):
            job[rank].batch(job.line("loop"))
            if rank == 0 and step == 5:
                job[rank].batch(job.line("loop"))
            job[rank].backward(job.line("backward"), 0, "step")
            job[rank].collective("all_reduce", job.line("reduce"), function="step", numel=9).step(job.line("step"))
    job[0].loader_end(job.line("loop")).waits_in("all_reduce", job.line("total"), numel=2).aborts()
    job[1].loader_end(job.line("loop")).waits_in("all_reduce", job.line("total"), numel=2).echoes(job.line("total"))
    found = verdict(job.crashed())
    assert (found.pitfall, found.culprits) == ("data-dependent-skip", (0,))
    assert found.where is not None and found.where.line == job.line("except")


SHARDED_EVALUATION = """
def loss_of(model, ids):
    return model(ids)  # <- model
def perplexity(model):
    return sum(loss_of(model, ids) for _ in range(4))  # <- sum
def main():
    for step in range(20):
        loss = loss_of(model, ids)
        loss.backward()  # <- backward
        optimizer.step()  # <- step
        if dist.get_rank() == 0:
            print(perplexity(model))  # <- guarded
        dist.barrier()  # <- barrier
"""


@pytest.mark.parametrize("world", [2, 4])
def test_a_sharded_model_evaluated_under_a_condition_on_the_rank_is_known_by_the_stack(world: int) -> None:
    job = Job(world, SHARDED_EVALUATION)
    model = job.line("model")
    for rank in range(world):
        for _ in range(3):
            job[rank].forward(model, function="loss_of").collective("all_gather", model, function="loss_of")
            job[rank].backward(job.line("backward"), 0).step(job.line("step"))
    job[0].eval_forward(model, function="loss_of").collective("all_gather", model, function="loss_of").waits()
    job[0].set_thread(stack=(
        torch_frame(), frame(model, "loss_of"), frame(job.line("sum"), "<genexpr>"),
        frame(job.line("sum"), "perplexity"), frame(job.line("guarded")),
    ))  # fmt: skip
    for rank in range(1, world):
        job[rank].waits_in("barrier", job.line("barrier"))
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("evaluation-on-one-rank", (0,))


def test_the_rank_that_a_broadcast_comes_from_is_missing_in_it_not_all_others_too_many() -> None:
    source = """
def main():
    if dist.get_rank() == 0:  # <- guard
        box[0] = load()
    else:
        dist.broadcast_object_list(box, src=0)  # <- broadcast
    dist.all_gather(out, x)  # <- gather
"""
    job = Job(3, source)
    job[0].waits_in("all_gather", job.line("gather"))
    for rank in (1, 2):
        job[rank].collective("broadcast", job.line("broadcast"), root=0, outer="broadcast_object_list").waits()
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("lone-collective", (0,))
    assert found.waiting == (1, 2)


PIPELINE = """
def backward(stage):
    if stage.last:
        out.mean().backward()  # <- last
    else:
        out.backward(grad)  # <- others
def norm(params):
    dist.all_reduce(square)  # <- norm
def main():
    for step in range(12):
        backward(stage)
        if stage.last and step % 5 == 4:
            norm(params)
        opt.step()  # <- step
        dist.barrier()  # <- barrier
"""


def test_stages_that_run_different_lines_part_where_the_operations_do() -> None:
    job = Job(4, PIPELINE)
    for rank in range(4):
        line = job.line("last" if rank == 3 else "others")
        for _ in range(4):
            job[rank].backward(line, 0, "backward").step(job.line("step")).collective("barrier", job.line("barrier"))
        job[rank].backward(line, 0, "backward")
        if rank == 3:
            job[rank].collective("all_reduce", job.line("norm"), function="norm").waits()
        else:
            job[rank].step(job.line("step")).waits_in("barrier", job.line("barrier"))
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("lone-collective", (3,))
    assert found.where is not None and found.where.line == job.line("norm")


def test_a_background_thread_in_the_same_group_is_the_mismatch_not_a_skipped_step() -> None:
    job = Job(2, "def main():\n    loss.backward()  # <- backward\n")
    line = job.line("backward")
    for rank in (0, 1):
        job[rank].forward(line).collective("all_gather", line)
    job[0].backward(line, 0).collective("all_gather", line).event(
        "collective", None, op="all_gather", outer="gather_object", group=job.world_group, seq=3
    )
    job[1].event("collective", None, op="all_gather", outer="gather_object", group=job.world_group, seq=2)
    job[1].backward(line, 0).event("collective", line, op="all_gather", group=job.world_group, seq=3).aborts()
    job[0].echoes(line)
    made = job.crashed().snapshot()
    saver = Thread(tid=2, name="async_save", collectives=3)
    processes = tuple(msgspec.structs.replace(one, threads=(*one.threads, saver)) for one in made.processes)
    found = diagnose(msgspec.structs.replace(made, processes=processes)).verdict
    assert found is not None and (found.pitfall, found.culprits) == ("collective-mismatch", (0, 1))
    assert "two threads" in found.sentence


STREAM = """
def main():
    stream = batches(dataset)
    while True:
        x = next(stream, None)  # <- next
        if x is None:
            break
        loss = model(x)  # <- forward
        loss.backward()  # <- backward
        opt.step()  # <- step
    dist.barrier()  # <- barrier
"""


@pytest.mark.parametrize("end", ["if x is None:", "if not x:", "if x == END:"])
def test_the_end_of_a_stream_that_is_asked_for_by_hand_is_uneven_steps(end: str) -> None:
    job = left_loop(STREAM.replace("if x is None:", end))
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("uneven-steps", (3,))
    assert found.where is not None and found.where.line == job.line("next")


def test_a_value_that_was_computed_is_no_end_of_a_stream() -> None:
    job = left_loop(STREAM.replace("next(stream, None)", "choose(stream)"))
    assert verdict(job).pitfall == "data-dependent-skip"


def test_a_condition_within_a_line_counts_with_all_its_parts() -> None:
    source = """
def main():
    for step in range(20):
        model(x).backward()  # <- train
        step % 5 == 4 and is_main and validate(model)
def validate(model):
    return model(y)  # <- validate
"""
    program = Program({SCRIPT: source})
    found = program.rank_guard(Frame(SCRIPT, 7, "validate"))
    assert found is not None and "is_main" in found.text


def test_a_last_slice_that_came_out_too_short_is_uneven_steps() -> None:
    job = left_loop(
        STREAM.replace("x = next(stream, None)  # <- next", "x = data[order[i : i + 8]]").replace(
            "if x is None:", "if len(x) < 8:"
        )
    )
    assert verdict(job).pitfall == "uneven-steps"


def test_a_decorator_for_one_rank_is_a_condition_on_the_rank() -> None:
    source = """
@rank_zero_only
def log(loss):
    dist.all_reduce(loss)  # <- log
def main():
    for step in range(20):
        loss = model(x)  # <- forward
        loss.backward()  # <- backward
        log(loss)
"""
    job = Job(2, source)
    for rank in (0, 1):
        job[rank].forward(job.line("forward")).backward(job.line("backward"))
    job[0].collective("all_reduce", job.line("log"), function="log").waits()
    job[1].forward(job.line("forward")).backward(job.line("backward")).waits_in_cpp()
    found = verdict(job)
    assert (found.pitfall, found.culprits) == ("lone-collective", (0,))
    assert "`@rank_zero_only`" in found.why
