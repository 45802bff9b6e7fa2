"""Given ends that are no failure of the program (or of the launcher alone), then they are not called one."""

from __future__ import annotations

import msgspec
import pytest

from rankcall.diagnose import diagnose
from rankcall.findings import Report
from rankcall.snapshot import ExceptionNote, Exit, ExitNote, Snapshot

from .hand_made import SCRIPT, START, Job, frame

LAUNCH = ("rankcall", "run", "--nnodes=2", "--rdzv-endpoint", "node-0:29500", "train.py")


def launcher_failed(job: Job, error: ExceptionNote, command: tuple[str, ...] = LAUNCH) -> Report:
    made = job.crashed().snapshot(launcher_error=error)
    return diagnose(msgspec.structs.replace(made, command=command))


def nobody() -> Job:
    job = Job(2)
    job.ranks = []
    return job


def test_a_rendezvous_that_ran_out_of_time_is_a_missing_rank_at_its_endpoint() -> None:
    found = launcher_failed(nobody(), ExceptionNote("RendezvousTimeoutError", "")).verdict
    assert found is not None and found.pitfall == "missing-rank"
    assert "node-0:29500" in found.sentence and "--nnodes 2" in found.sentence
    assert "before any rank ran" in found.sentence
    assert any("nc -vz node-0 29500" in fix for fix in found.fix)


@pytest.mark.parametrize(
    ("error", "command", "endpoint"),
    [
        (ExceptionNote("RendezvousConnectionError", "The connection to the C10d store has failed. See inner exception "
                       "for details."), LAUNCH, "node-0:29500"),
        (ExceptionNote("DistNetworkError", "The client socket has timed out after 60000ms while trying to connect to "
                       "(10.0.0.7, 29400)."), ("rankcall", "run", "train.py"), "10.0.0.7:29400"),
        (ExceptionNote("DistStoreError", "Timed out after 61 seconds waiting for clients. 1/2 clients joined."),
         ("rankcall", "run", "--master_addr=h1", "--master_port=5000", "train.py"), "h1:5000"),
    ],
)  # fmt: skip
def test_a_store_that_does_not_answer_the_launcher_is_an_unreachable_master(
    error: ExceptionNote, command: tuple[str, ...], endpoint: str
) -> None:
    found = launcher_failed(nobody(), error, command).verdict
    assert found is not None and found.pitfall == "master-unreachable"
    assert endpoint in found.sentence


def test_a_launcher_that_failed_after_its_ranks_does_not_say_before() -> None:
    job = Job(2)
    for rank in (0, 1):
        job[rank].finishes()
    found = launcher_failed(job, ExceptionNote("RuntimeError", "the agent lost its table")).verdict
    assert found is not None and "before any rank ran" not in found.sentence
    assert "after its ranks had been started" in found.sentence


def test_a_ranks_own_exception_comes_before_the_launchers() -> None:
    job = Job(2)
    job[1].raises("ValueError", "bad batch", 7)
    job[0].killed()
    found = launcher_failed(job, ExceptionNote("RendezvousConnectionError", "")).verdict
    assert found is not None and (found.pitfall, found.culprits) == ("program-error", (1,))


def aborted_at_the_end(job: Job, rank: int) -> None:
    job[rank].set(
        exit=Exit(signal=6, time=START + 9), exit_note=ExitNote("finish", START + 8), state="gone",
        log_tail=("terminate called without an active exception",),
    )  # fmt: skip


def snapshot_of(job: Job) -> Snapshot:
    return job.crashed().snapshot()


def test_an_abort_after_the_programs_end_is_said_with_low_confidence() -> None:
    job = Job(2)
    job[0].finishes()
    aborted_at_the_end(job, 1)
    found = diagnose(snapshot_of(job)).verdict
    assert found is not None and (found.pitfall, found.culprits) == ("crashed-by-signal", (1,))
    assert found.confidence <= 0.5 and "work was done" in found.sentence


def test_an_abort_after_the_programs_end_is_no_root_beside_a_real_failure() -> None:
    job = Job(3)
    aborted_at_the_end(job, 0)
    job[1].raises("ValueError", "bad batch", 7, at=20.0)
    job[2].killed()
    found = diagnose(snapshot_of(job)).verdict
    assert found is not None and (found.pitfall, found.culprits) == ("program-error", (1,))


def test_the_exception_that_an_exit_stood_under_is_the_reason() -> None:
    job = Job(2)
    raised = ExceptionNote("KeyError", "'label'", (frame(3), frame(9, "load")), time=START + 5)
    note = ExitNote("exit", START + 5.1, 1, frame(4), exception=raised)
    job[1].set(exit=Exit(1, time=START + 5.2), exit_note=note, state="gone")
    job[0].killed()
    found = diagnose(snapshot_of(job)).verdict
    assert found is not None and (found.pitfall, found.culprits) == ("program-error", (1,))
    assert "KeyError" in found.sentence and found.where is not None and found.where.line == 9


def test_an_exit_under_an_echo_is_an_echo() -> None:
    job = Job(2)
    job[0].raises("ValueError", "bad batch", 7, at=0.1)
    echo = ExceptionNote("RuntimeError", "Connection closed by peer [127.0.0.1]:9159", (frame(9),), time=START + 0.05)
    job[1].set(
        exit=Exit(1, time=START + 0.2), exit_note=ExitNote("exit", START + 0.06, 1, frame(4), exception=echo),
        state="gone",
    )  # fmt: skip
    found = diagnose(snapshot_of(job)).verdict
    assert found is not None and found.culprits == (0,)


def test_a_rank_that_was_ended_while_it_took_its_leave_keeps_its_own_exception() -> None:
    job = Job(2)
    raised = ExceptionNote("AssertionError", "cannot encode", (frame(31), frame(11, "encode")), time=START + 1)
    job[1].set(
        exit=Exit(signal=15, time=START + 3, killed_by_launcher=True), state="gone",
        exit_note=ExitNote("exit", START + 2.5, 1, frame(37), exception=raised),
    )  # fmt: skip
    job[0].collective("all_reduce", 19).echoes(19)
    found = diagnose(snapshot_of(job)).verdict
    assert found is not None and (found.pitfall, found.culprits) == ("program-error", (1,))
    assert found.where is not None and found.where.line == 11


NOT_CHOSEN = """
def main():
    dist.init_process_group("gloo")
    if rank >= chosen:
        return  # <- return
    for _ in range(args.rounds):
        for _ in range(10):
            model(x).backward()  # <- backward
        dist.all_reduce(p)  # <- reduce
"""


def test_a_rank_that_never_began_the_loop_left_before_it() -> None:
    job = Job(3, NOT_CHOSEN)
    job[2].finishes()
    for rank in (0, 1):
        for _ in range(10):
            job[rank].backward(job.line("backward"), 0)
        job[rank].collective("all_reduce", job.line("reduce")).echoes(job.line("reduce"))
    found = diagnose(snapshot_of(job)).verdict
    assert found is not None and (found.pitfall, found.culprits) == ("rank-left-early", (2,))
    assert found.where is not None and found.where.line == job.line("return")


SLOW_GOODBYE = """
def run():
    for line in lines:
        encode(line)  # <- encode
        dist.all_reduce(grad)  # <- reduce
def main():
    try:
        run()  # <- run
    except Exception:
        logging.exception("failed")
        dist.destroy_process_group()
        upload_report()  # <- upload
        sys.exit(1)
"""


def test_the_rank_that_is_still_taking_its_leave_is_the_root_though_its_echoes_ended_first() -> None:
    job = Job(2, SLOW_GOODBYE)
    for rank in (0, 1):
        job[rank].collective("all_reduce", job.line("reduce"), function="run")
    job[0].collective("all_reduce", job.line("reduce"), function="run").echoes(job.line("reduce"))
    job[1].event("destroy", job.line("upload") - 1).doing("idle", job.line("upload"), blocked_in="sleeping")
    job[1].set(log_tail=(
        "Traceback (most recent call last):", f'  File "{SCRIPT}", line {job.line("run")}, in main', "    run()",
        f'  File "{SCRIPT}", line {job.line("encode")}, in run', "    encode(line)", "AssertionError: cannot encode",
    ))  # fmt: skip
    found = diagnose(job.snapshot(reason="exit", outcome="crashed", stalled=False)).verdict
    assert found is not None and (found.pitfall, found.culprits) == ("program-error", (1,))
    assert found.where is not None and found.where.line == job.line("encode")
    assert "still in its `except` branch" in found.sentence
