"""The report as a whole: rows, purity, size, and snapshots that make no sense."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import msgspec
import pytest

from rankcall.diagnose import diagnose
from rankcall.findings import report_from_json, report_to_json
from rankcall.pitfalls import names
from rankcall.snapshot import Process, Snapshot

from .hand_made import Job, frame
from .test_parting_verdicts import NAN_GUARD, nan_guard, train


def test_judging_is_pure_and_survives_the_file() -> None:
    snapshot = nan_guard().snapshot()
    one, two = diagnose(snapshot), diagnose(snapshot)
    assert report_to_json(one) == report_to_json(two)
    assert report_from_json(report_to_json(one)) == one


def test_judging_does_not_import_torch() -> None:
    code = "import sys; from rankcall.diagnose import diagnose; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_rank_has_a_row_with_its_state_and_place() -> None:
    job = nan_guard()
    rows = diagnose(job.snapshot()).ranks
    assert [row.rank for row in rows] == [0, 1, 2, 3]
    assert {row.state for row in rows} == {"waiting"}
    assert rows[2].collective is not None and rows[2].collective.op == "barrier"
    assert rows[2].where is not None and rows[2].where.line == job.line("barrier")
    assert rows[0].step == 30 and rows[0].stack


def test_a_row_says_how_its_process_ended() -> None:
    job = Job(3, NAN_GUARD).crashed()
    job[0].dies(9)
    job[1].raises("ValueError", "bad", 3, at=1)
    job[2].finishes()
    rows = diagnose(job.snapshot()).ranks
    assert [row.state for row in rows] == ["crashed", "crashed", "finished"]
    assert rows[0].exit is not None and rows[0].exit.signal == "SIGKILL"
    assert rows[1].exit is not None and rows[1].exit.exception == "ValueError: bad"


def test_evidence_indices_point_into_the_report_s_list() -> None:
    report = diagnose(nan_guard().snapshot())
    assert report.verdict is not None and report.verdict.evidence
    assert max(report.verdict.evidence) < len(report.evidence)


def test_the_outcome_is_the_watcher_s_word_or_what_was_seen() -> None:
    assert diagnose(nan_guard().snapshot()).outcome == "hung"
    assert diagnose(Job(2).at_once().snapshot()).outcome is None
    assert diagnose(nan_guard().snapshot(outcome="stopped")).outcome == "stopped"


def test_eight_full_rings_are_judged_in_a_fraction_of_a_second() -> None:
    job = Job(8, NAN_GUARD)
    train(job, [r for r in range(8) if r != 2], 1020)
    for rank in (r for r in range(8) if r != 2):
        job[rank].batch(5).forward(job.line("forward")).backward(job.line("backward")).waits_in_cpp()
    train(job, [2], 500)
    job[2].batch(5).forward(job.line("forward"))
    train(job, [2], 520)
    job[2].waits_in("barrier", job.line("barrier"))
    snapshot = job.snapshot()
    begin = time.process_time()
    report = diagnose(snapshot)
    assert report.verdict is not None and report.verdict.culprits == (2,)
    assert time.process_time() - begin < 3.0  # a tenth of it is usual; ten times means that it is not linear


def test_a_ring_that_has_lost_its_beginning_is_still_compared() -> None:
    job = nan_guard()
    for rank in job.ranks:
        rank.events = rank.events[-100:]
    found = diagnose(job.snapshot()).verdict
    assert found is not None and (found.pitfall, found.culprits) == ("data-dependent-skip", (2,))


def test_when_the_parting_has_left_the_ring_the_counters_still_tell() -> None:
    job = nan_guard()
    for rank in job.ranks:
        rank.events = rank.events[-40:]
    found = diagnose(job.snapshot()).verdict
    assert found is not None
    assert (found.pitfall, found.culprits) == ("data-dependent-skip", (2,))
    assert found.where is not None and found.where.line == job.line("guard")


def test_a_thousand_ranks_make_one_short_sentence() -> None:
    job = Job(1000, "dist.barrier()  # <- barrier\nlock.acquire()  # <- lock\n")
    for rank in range(1000):
        if rank == 37:
            job[rank].doing("idle", job.line("lock"), blocked_in="waiting for a lock")
        else:
            job[rank].waits_in("barrier", job.line("barrier"))
    found = diagnose(job.snapshot()).verdict
    assert found is not None and found.culprits == (37,)
    assert "ranks 0-36, 38-999" in found.sentence and len(found.sentence) < 250


@pytest.mark.parametrize("reason", ["stall", "exit", "end", "interrupt", "request"])
def test_an_empty_snapshot_has_no_verdict(reason: str) -> None:
    for stalled in (False, True):
        snapshot = Snapshot(taken_at=1.0, reason=reason, stalled=stalled)  # type: ignore[arg-type]
        assert diagnose(snapshot).verdict is None


def test_processes_that_could_not_be_recorded_are_judged_by_what_is_left() -> None:
    bare = [Process("host-a", 10 + rank, launcher_rank=rank, recorded=False, state="sleeping") for rank in range(2)]
    snapshot = Snapshot(taken_at=1.0, reason="stall", stalled=True, world_size=2, processes=tuple(bare))
    report = diagnose(snapshot)
    assert report.verdict is None
    assert [row.state for row in report.ranks] == ["unknown", "unknown"]


def _scramble(job: Job, dice: random.Random) -> Snapshot:
    """A snapshot whose parts contradict one another: cut, swapped and missing."""
    snapshot = job.snapshot()
    processes = []
    for process in snapshot.processes:
        ring = list(process.ring)
        for _ in range(dice.randrange(4)):
            if ring:
                del ring[dice.randrange(len(ring))]
        if dice.random() < 0.3:
            ring = ring[dice.randrange(len(ring) + 1) :]
        if dice.random() < 0.2:
            ring = [msgspec.structs.replace(e, site=None, seq=None, place=None, group="") for e in ring]
        changes: dict[str, object] = {"ring": tuple(ring)}
        if dice.random() < 0.2:
            changes["groups"] = ()
        if dice.random() < 0.2:
            changes["threads"] = ()
        if dice.random() < 0.1:
            changes["claimed_rank"] = dice.choice([None, 0, 7, -1])
        if dice.random() < 0.1:
            changes["state"] = dice.choice(["stopped", "zombie", "unknown", "uninterruptible"])
        processes.append(msgspec.structs.replace(process, **changes))
    dice.shuffle(processes)
    return msgspec.structs.replace(
        snapshot,
        processes=tuple(processes[: dice.randrange(len(processes) + 1)]),
        sources=snapshot.sources if dice.random() < 0.7 else {},
        world_size=dice.choice([None, 0, 1, 2, 4, 9]),
        reason=dice.choice(["stall", "exit", "end", "request"]),
        stalled=dice.random() < 0.5,
        outcome=dice.choice([None, "crashed", "hung", "completed", "stopped"]),
    )


@pytest.mark.parametrize("seed", range(60))
def test_snapshots_that_make_no_sense_never_raise(seed: int) -> None:
    dice = random.Random(seed)
    job = nan_guard(asked=dice.random() < 0.5)
    for rank in job.ranks:
        deed = dice.randrange(8)
        if deed == 0:
            rank.echoes(5)
        elif deed == 1:
            rank.raises("ValueError", "x", 3)
        elif deed == 2:
            rank.finishes()
        elif deed == 3:
            rank.recv(dice.randrange(6), 4).waits()
        elif deed == 4:
            rank.dies(dice.choice([6, 7, 9, 11, 15, 99]))
        elif deed == 5:
            rank.doing(dice.choice(["data", "save", "load", "init", "compile", "idle"]), 4)
    report = diagnose(_scramble(job, dice))
    assert report.verdict is None or report.verdict.pitfall in names()
    report_to_json(report)
    assert frame(1).line == 1
