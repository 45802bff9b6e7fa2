"""The trace: what is drawn of each rank, that it is well formed whatever a job holds, and that Perfetto reads it so."""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trace_processor
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_processor import TraceProcessor

from rankcall.diagnose import diagnose
from rankcall.findings import Incident, RankRow, Report, Verdict
from rankcall.render.perfetto import MOST_ARROWS, to_perfetto, trace_parts
from rankcall.snapshot import (
    Dump,
    Event,
    ExceptionNote,
    Exit,
    ExitNote,
    Frame,
    Group,
    Process,
    Snapshot,
    Thread,
    Wait,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from diagnose.hand_made import START, Job

Shown = dict[str, Any]

needs_perfetto = pytest.mark.skipif(
    trace_processor.why_not() is not None, reason=trace_processor.why_not() or "Perfetto's trace processor is there"
)

REQUIRED = {
    "M": {"pid", "name", "args"},
    "X": {"pid", "tid", "ts", "dur", "name", "cat", "args"},
    "i": {"pid", "tid", "ts", "s", "name", "cat", "args"},
    "C": {"pid", "ts", "name", "args"},
    "s": {"pid", "tid", "ts", "id", "name", "cat"},
    "f": {"pid", "tid", "ts", "id", "name", "cat", "bp"},
}
OPTIONAL = {"M": {"tid"}, "X": {"cname"}}


class Trace:
    """A trace that was found well formed, and ways to look at it."""

    def __init__(self, text: str) -> None:
        text.encode("utf-8")
        document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
        self.about = document["otherData"]
        self.events: list[Shown] = document["traceEvents"]
        self.processes: dict[int, str] = {}
        self.places: dict[int, int] = {}
        self.tracks: dict[tuple[int, int], str] = {}
        for event in self.events:
            self._check_fields(event)
            self._name(event)
        self._check_names()
        self.slices: dict[tuple[int, int], list[Shown]] = defaultdict(list)
        for event in self.events:
            if event["ph"] == "X":
                self.slices[event["pid"], event["tid"]].append(event)
        self._check_slices()
        self.arrows = self._arrows()

    def _check_fields(self, event: Shown) -> None:
        phase = event["ph"]
        fields = set(event) - {"ph"}
        assert REQUIRED[phase] <= fields <= REQUIRED[phase] | OPTIONAL.get(phase, set()), event
        for name in ("pid", "tid", "ts", "dur", "id"):
            assert type(event.get(name, 0)) is int, event
            assert 0 <= event.get(name, 0) < 2**53, event
        assert event["name"], event
        assert event["name"].isprintable(), event
        assert all(value is not None and value != [] for value in event.get("args", {}).values()), event
        if phase == "i":
            assert event["s"] in ("t", "g")
        if phase == "C":
            assert all(type(value) is int for value in event["args"].values()), event

    def _name(self, event: Shown) -> None:
        if event["ph"] != "M":
            return
        if event["name"] == "process_name":
            assert event["pid"] not in self.processes, event
            self.processes[event["pid"]] = event["args"]["name"]
        elif event["name"] == "process_sort_index":
            self.places[event["pid"]] = event["args"]["sort_index"]
        elif event["name"] == "thread_name":
            assert (event["pid"], event["tid"]) not in self.tracks, event
            self.tracks[event["pid"], event["tid"]] = event["args"]["name"]

    def _check_names(self) -> None:
        assert sorted(self.places.values()) == list(range(len(self.processes)))
        for event in self.events:
            assert event["pid"] in self.processes, event
            if "tid" in event:
                assert (event["pid"], event["tid"]) in self.tracks, event
                # A track with the number of its process would be shown first, as its main thread.
                assert event["tid"] not in self.processes, event

    def _check_slices(self) -> None:
        for track, slices in self.slices.items():
            end = 0
            for one in slices:
                assert one["ts"] >= end, f"{self.tracks[track]}: {one} overlaps the one before"
                end = one["ts"] + one["dur"]

    def _arrows(self) -> list[tuple[Shown, Shown]]:
        ends: dict[int, dict[str, Shown]] = defaultdict(dict)
        for event in self.events:
            if event["ph"] in "sf":
                assert event["ph"] not in ends[event["id"]], event
                around = [one for one in self.slices[event["pid"], event["tid"]] if _holds(one, event["ts"])]
                assert len(around) == 1, event
                ends[event["id"]][event["ph"]] = around[0]
        assert all(set(one) == {"s", "f"} for one in ends.values())
        arrows = [(one["s"], one["f"]) for one in ends.values()]
        # Perfetto turns an arrow round whose slices begin in the other order.
        assert all(source["ts"] < target["ts"] for source, target in arrows)
        return arrows

    def on(self, pid: int, track: str) -> list[Shown]:
        return [
            one for key, slices in self.slices.items() if key[0] == pid and self.tracks[key] == track for one in slices
        ]

    def names(self, pid: int, track: str) -> list[str]:
        return [one["name"] for one in self.on(pid, track)]

    def points(self, pid: int | None = None) -> list[str]:
        return [one["name"] for one in self.events if one["ph"] == "i" and pid in (None, one["pid"])]

    def waits_for(self) -> set[tuple[int, int]]:
        return {(source["pid"], target["pid"]) for source, target in self.arrows}


def _holds(one: Shown, at: int) -> bool:
    return one["ts"] <= at < one["ts"] + one["dur"]


def trace_of(snapshot: Snapshot, report: Report | None = None, **more: Any) -> Trace:
    return Trace(to_perfetto(report if report is not None else diagnose(snapshot), snapshot, **more))


def seconds(snapshot: Snapshot, trace: Trace, at: int) -> float:
    """A time of the trace since the epoch."""
    return float(trace.about["time 0, seconds since 1970 UTC"]) + at / 1e6


# --- jobs -------------------------------------------------------------------------------------------------------


def hung(world: int = 4) -> Snapshot:
    """Rank 1 sleeps before a barrier; the others have come to it."""
    job = Job(world)
    for rank in job.ranks:
        rank.train(3, 1, 2, 3, batch=4)
        if rank.rank == 1:
            rank.doing("idle", 9).set_thread(phase_since=rank.time)
        else:
            rank.waits_in("barrier", 10)
    return job.snapshot()


def crashed() -> Snapshot:
    job = Job(3).crashed()
    for rank in job.ranks:
        rank.train(2, 1, 2, 3)
    job[0].waits_in("all_reduce", 7).echoes(7)
    job[1].raises("ValueError", "no such label", 5)
    job[2].waits_in("all_reduce", 7).dies(9)
    return job.snapshot()


def head_to_head() -> Snapshot:
    """Both send first."""
    job = Job(2)
    for rank in job.ranks:
        rank.send(1 - rank.rank, 5).waits()
    return job.snapshot()


def completed() -> Snapshot:
    job = Job(2).completed()
    for rank in job.ranks:
        rank.train(2, 1, 2, 3).collective("all_reduce", 8).loader_end(9).finishes()
    return job.snapshot()


def two_threads() -> Snapshot:
    """A checkpoint thread waits too."""
    snapshot = hung(2)
    first = snapshot.processes[0]
    wait = Wait("collective", "gloo:all_gather", "0-1#1", "gloo", 3, since=START + 1, source="flight-recorder")
    threads = (*first.threads, Thread(7, "checkpoint\x07", wait=wait))
    return msgspec.structs.replace(
        snapshot, processes=(msgspec.structs.replace(first, threads=threads), *snapshot.processes[1:])
    )


def dumps(backend: str = "nccl") -> Snapshot:
    """Two ranks as flight-recorder dumps tell them: collectives that overlap; rank 1 lacks the last one."""
    processes = []
    for rank in range(2):
        group = Group("0-1#0", backend=backend, members=(0, 1), enqueued=4 - rank, finished=3)
        other = Group("0-1#1", backend=backend, members=(0, 1), enqueued=1, finished=1)
        late = 0.25 * rank
        ring = [
            operation(0, 10.0 + late, "0-1#0", 1, ended=12.0),
            operation(1, 11.0, "0-1#1", 1, ended=11.5, op="all_gather"),
            operation(2, 11.25, "0-1#0", 2, ended=13.0),
            operation(3, 13.0 + late, "0-1#0", 3, ended=14.0),
        ]
        if rank == 0:
            ring.append(operation(4, 15.0, "0-1#0", 4))
        if backend == "gloo":
            ring = [msgspec.structs.replace(event, ended=None) for event in ring]
        processes.append(
            Process(
                host=f"host-{rank}", pid=0, claimed_rank=rank, groups=(group, other), ring=tuple(ring),
                dump=Dump(f"dump-{rank}", entries=len(ring)),
            )
        )  # fmt: skip
    return Snapshot(taken_at=START + 20.0, origin="files", world_size=2, processes=tuple(processes))


def operation(index: int, at: float, group: str, seq: int, op: str = "all_reduce", ended: float | None = None) -> Event:
    return Event(
        index, START + at, "collective", op=op, group=group, seq=seq, numel=8, dtype="float32",
        site=Frame("/home/me/train.py", 5, "main"), ended=None if ended is None else START + ended,
    )  # fmt: skip


def blames(*culprits: int, waiting: Iterable[int] = (), sentence: str = "it did it") -> Report:
    verdict = Verdict(
        "lone-collective", "communication", "A title", sentence, 0.5, False, culprits, (), tuple(waiting), None, "why",
        ("fix it",),
    )  # fmt: skip
    return Report("why", verdict=verdict)


JOBS = {
    "hung": hung, "crashed": crashed, "head-to-head": head_to_head, "completed": completed, "two threads": two_threads,
    "dumps of nccl": dumps, "dumps of gloo": lambda: dumps("gloo"), "nothing": lambda: Snapshot(taken_at=START),
}  # fmt: skip


# --- what is drawn ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", JOBS)
def test_the_trace_is_well_formed(name: str) -> None:
    snapshot = JOBS[name]()
    trace = trace_of(snapshot)
    assert len(trace.processes) == len(snapshot.processes) + 1
    assert trace.about["ranks"] == len(snapshot.processes)


def test_culprits_come_first_and_the_verdict_before_them() -> None:
    trace = trace_of(hung())
    assert sorted(trace.processes, key=trace.places.__getitem__) == [4, 1, 0, 2, 3]
    assert trace.processes == {
        4: "verdict, world size", 1: "host-a, culprit, rank", 0: "host-a, rank", 2: "host-a, rank", 3: "host-a, rank",
    }  # fmt: skip


def test_a_phase_lasts_until_the_next_one() -> None:
    snapshot = hung()
    trace = trace_of(snapshot)
    assert trace.names(0, "phases") == [
        "batch", "forward", "backward", "optimizer + data", "batch", "forward", "backward", "optimizer + data",
        "batch", "forward", "backward", "optimizer",
    ]  # fmt: skip
    first, second, *_ = trace.on(0, "phases")
    assert (first["ts"], first["dur"]) == (0, 10_000)
    assert second["ts"] == 10_000
    assert second["args"] == {"step": 0, "site": "/home/me/train.py:1 in main"}


def test_what_the_main_thread_does_now_is_the_last_phase() -> None:
    snapshot = hung()
    trace = trace_of(snapshot)
    *_, optimizer, idle = trace.on(1, "phases")
    process = snapshot.processes[1]
    assert (optimizer["name"], idle["name"]) == ("optimizer", "idle")
    assert seconds(snapshot, trace, idle["ts"]) == pytest.approx(process.threads[0].phase_since)
    assert seconds(snapshot, trace, idle["ts"] + idle["dur"]) == pytest.approx(snapshot.taken_at)
    assert optimizer["ts"] + optimizer["dur"] == idle["ts"]


def test_a_phase_that_goes_on_reaches_to_the_end() -> None:
    job = Job(1)
    job[0].forward(1).backward(2)
    job[0].doing("backward", 2).set_thread(phase_since=job[0].time - 0.005)
    snapshot = job.snapshot()
    trace = trace_of(snapshot)
    assert trace.names(0, "phases") == ["forward", "backward"]
    last = trace.on(0, "phases")[-1]
    assert seconds(snapshot, trace, last["ts"] + last["dur"]) == pytest.approx(snapshot.taken_at)


def test_a_collective_that_was_not_completed_is_marked_and_reaches_to_the_end() -> None:
    snapshot = hung()
    trace = trace_of(snapshot)
    (barrier,) = trace.on(0, "collectives")
    assert barrier["name"] == "barrier (not completed)"
    assert barrier["cname"] == "terrible"
    assert barrier["args"]["key"] == "0-3#0 #4"
    assert seconds(snapshot, trace, barrier["ts"] + barrier["dur"]) == pytest.approx(snapshot.taken_at)
    assert trace.on(1, "collectives") == []


def test_only_the_send_that_is_waited_for_is_marked() -> None:
    job = Job(2)
    job[0].send(1, 5).send(1, 6).waits()
    job[1].doing("idle", 9)
    assert trace_of(job.snapshot()).names(0, "collectives") == ["send to 1", "send to 1 (not completed)"]


def test_a_call_that_returned_ends_where_the_main_thread_went_on() -> None:
    job = Job(1)
    job[0].send(0, 5)
    job[0].doing("data", 9).set_thread(phase_since=START + 0.5)
    (send,) = trace_of(job.snapshot(), Report("why")).on(0, "collectives")
    assert (send["ts"], send["dur"]) == (0, 500_000)
    assert send["args"]["end"] == "not recorded; drawn until the next event"


def test_a_phase_whose_end_is_known_ends_there() -> None:
    ring = (Event(0, START, "save", ended=START + 1), Event(1, START + 5, "forward"))
    snapshot = Snapshot(taken_at=START + 6, processes=(Process("h", 1, claimed_rank=0, ring=ring),))
    assert [one["dur"] for one in trace_of(snapshot, Report("why")).on(0, "phases")] == [1_000_000, 1_000_000]


def test_each_rank_waits_for_the_culprit() -> None:
    snapshot = hung()
    trace = trace_of(snapshot)
    assert trace.waits_for() == {(0, 1), (2, 1), (3, 1)}
    assert trace.names(0, "state") == ["waiting in barrier #4"]
    assert trace.names(1, "awaited") == ["awaited by ranks 0, 2-3"]
    (state,) = trace.on(0, "state")
    wait = snapshot.processes[0].threads[0].wait
    assert wait is not None
    assert seconds(snapshot, trace, state["ts"]) == pytest.approx(wait.since)
    assert seconds(snapshot, trace, state["ts"] + state["dur"]) == pytest.approx(snapshot.taken_at)
    assert state["args"]["where"] == "/home/me/train.py:10 in main"


def test_sends_wait_for_their_peers() -> None:
    trace = trace_of(head_to_head())
    assert trace.waits_for() == {(0, 1), (1, 0)}
    assert trace.names(0, "collectives") == ["send to 1 (not completed)"]
    assert trace.names(1, "state") == ["waiting in send to 0"]


def test_the_verdict_is_a_slice_and_a_moment_of_the_whole_trace() -> None:
    snapshot = hung()
    report = diagnose(snapshot)
    trace = trace_of(snapshot, report)
    assert report.verdict is not None
    (verdict,) = trace.on(4, "verdict")
    assert verdict["name"] == report.verdict.sentence
    assert verdict["args"]["pitfall"] == report.verdict.pitfall
    assert verdict["args"]["fix"] == list(report.verdict.fix)
    assert verdict["ts"] == min(one["ts"] for rank in (0, 2, 3) for one in trace.on(rank, "state"))
    everywhere = [one for one in trace.events if one["ph"] == "i" and one["s"] == "g"]
    assert [one["name"] for one in everywhere] == [report.verdict.sentence]


def test_counters_show_the_steps_and_how_many_ranks_wait() -> None:
    trace = trace_of(hung())
    steps = [one["args"]["steps"] for one in trace.events if one["ph"] == "C" and one["pid"] == 0]
    waiting = [one["args"]["waiting"] for one in trace.events if one["ph"] == "C" and one["pid"] == 4]
    assert steps == [0, 1, 2, 3]
    assert waiting == [1, 2, 3]


def test_endings_are_moments_and_states() -> None:
    trace = trace_of(crashed())
    assert trace.points(1) == ["exception ValueError: no such label"]
    assert trace.points(2) == ["ended by SIGKILL"]
    assert trace.names(1, "state") == ["crashed: exception ValueError: no such label"]
    # What a dead rank was in ends with it.
    (operation,) = trace.on(2, "collectives")
    (state,) = trace.on(2, "state")
    assert operation["name"] == "all_reduce (not completed)"
    assert operation["ts"] + operation["dur"] == state["ts"] + (operation["dur"] == 1)


def test_incidents_say_whether_they_were_withdrawn() -> None:
    snapshot = hung()
    report = blames(1, sentence="now")
    earlier = blames(2, sentence="before").verdict
    assert earlier is not None
    incidents = (Incident(0, START + 1, earlier, START + 2), Incident(0, START + 3, earlier))
    trace = trace_of(snapshot, msgspec.structs.replace(report, incidents=incidents))
    assert trace.points(4) == ["now", "said so, withdrawn later", "said so", "about this trace"]


def test_waits_of_other_threads_have_their_own_track() -> None:
    trace = trace_of(two_threads())
    assert trace.names(0, "thread checkpoint\\x07") == ["waiting in all_gather #3"]


def test_handled_exceptions_are_moments_unless_they_are_older_than_the_trace() -> None:
    snapshot = hung(2)
    notes = (ExceptionNote("KeyError", "old", time=START - 500), ExceptionNote("KeyError", "new", time=START + 50))
    first = msgspec.structs.replace(snapshot.processes[0], handled=notes)
    trace = trace_of(msgspec.structs.replace(snapshot, processes=(first, snapshot.processes[1])))
    assert [one["args"]["message"] for one in trace.events if one["name"] == "handled KeyError"] == ["new"]
    assert trace.about["left out"] == {"handled exceptions": 1}


# --- flight-recorder dumps --------------------------------------------------------------------------------------


def test_completed_collectives_last_until_their_completion_and_overlap_on_other_tracks() -> None:
    trace = trace_of(dumps())
    drawn = [(one["name"], one["ts"], one["dur"], one["args"]["end"]) for one in trace.on(0, "collectives")]
    noticed = "completion was noticed"
    assert drawn == [
        ("all_reduce", 0, 2_000_000, noticed),
        ("all_reduce", 3_000_000, 1_000_000, noticed),
        ("all_reduce (not completed)", 5_000_000, 5_000_000, "not completed"),
    ]
    overlapping = {(one["name"], one["ts"], one["dur"]) for one in trace.on(0, "overlapping")}
    assert overlapping == {("all_gather", 1_000_000, 500_000), ("all_reduce", 1_250_000, 1_750_000)}
    assert not trace.on(0, "phases")


def test_a_rank_of_a_dump_has_the_state_of_its_row() -> None:
    """A dump names no process."""
    rows = (RankRow(1, "host-1", None, "missing"), RankRow(0, "host-0", None, "computing", phase="idle"))
    trace = trace_of(dumps(), Report("why", ranks=rows))
    assert trace.names(0, "state") == ["computing, idle"]
    assert trace.names(1, "state") == ["missing"]


def test_a_completion_after_the_snapshot_does_not_stretch_the_trace() -> None:
    ring = (operation(0, 1.0, "0-1#0", 1, ended=5_000.0),)
    snapshot = Snapshot(taken_at=START + 10, processes=(Process("h", 1, claimed_rank=0, ring=ring),))
    (one,) = trace_of(snapshot, Report("why")).on(0, "collectives")
    assert (one["ts"], one["dur"]) == (0, 9_000_000)


def test_without_completion_times_a_collective_lasts_until_the_last_rank_came() -> None:
    trace = trace_of(dumps("gloo"))
    early, late = ([(one["ts"], one["dur"]) for one in trace.on(rank, "collectives")] for rank in (0, 1))
    assert early[0] == (0, 250_000)
    assert late[0] == (250_000, 1)
    assert trace.on(0, "collectives")[0]["args"]["end"] == "not recorded; drawn until the last rank came"
    assert trace.names(0, "collectives")[-1] == "all_reduce (not completed)"


def test_more_overlapping_collectives_than_tracks_are_drawn_as_moments() -> None:
    ring = tuple(operation(n, 1.0 + n / 100, "0-1#0", n, ended=9.0) for n in range(20))
    snapshot = Snapshot(taken_at=START + 10, processes=(Process("h", 1, claimed_rank=0, ring=ring),))
    trace = trace_of(snapshot, Report("why"))
    assert len(trace.on(0, "collectives") + trace.on(0, "overlapping")) == 16
    assert trace.points(0) == ["all_reduce"] * 4
    assert trace.about["left out"] == {"lengths of overlapping collectives": 4}


# --- clocks -----------------------------------------------------------------------------------------------------


def test_clocks_are_corrected() -> None:
    """The same job, told by a machine whose clock is 1000 s ahead."""
    snapshot = hung()
    ahead = msgspec.json.decode(msgspec.json.encode(_shifted(snapshot.processes[2], 1000.0)), type=Process)
    processes = (*snapshot.processes[:2], ahead, snapshot.processes[3])
    told = msgspec.structs.replace(snapshot, processes=processes)
    report = diagnose(snapshot)
    assert to_perfetto(report, told) == to_perfetto(report, snapshot)


def _shifted(process: Process, by: float) -> Process:
    times = ("time", "ended", "since", "phase_since")

    def shifted(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: one + by if name in times and one is not None else shifted(one) for name, one in value.items()
            }
        return [shifted(one) for one in value] if isinstance(value, (list, tuple)) else value

    told = shifted(msgspec.to_builtins(process))
    return msgspec.convert(told | {"clock_offset": by}, type=Process)


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, -5.0, 0.0, 1e300, START + 400 * 86_400])
def test_impossible_times_are_left_out_and_counted(time: float) -> None:
    snapshot = hung()
    first = snapshot.processes[0]
    ring = (msgspec.structs.replace(first.ring[0], time=time), *first.ring[1:])
    thread = msgspec.structs.replace(first.threads[0], phase_since=time)
    first = msgspec.structs.replace(first, ring=ring, threads=(thread,), exit_note=ExitNote("finish", time))
    trace = trace_of(msgspec.structs.replace(snapshot, processes=(first, *snapshot.processes[1:])))
    assert trace.about["left out"] == {"events with an impossible time": 1}
    assert max(one["ts"] for one in trace.events if "ts" in one) == trace.about["snapshot taken at, microseconds"]


@pytest.mark.parametrize("time", [math.nan, math.inf, 0.0, -1.0, 1e200])
def test_a_snapshot_of_an_impossible_time_ends_with_its_last_event(time: float) -> None:
    snapshot = msgspec.structs.replace(hung(), taken_at=time)
    trace = trace_of(snapshot, diagnose(hung()))
    newest = max(event.time for process in snapshot.processes for event in process.ring)
    assert seconds(snapshot, trace, trace.about["snapshot taken at, microseconds"]) == pytest.approx(newest, abs=0.1)


# --- who is drawn -----------------------------------------------------------------------------------------------


def test_a_rank_that_never_started_is_drawn_and_waited_for() -> None:
    snapshot = hung(2)
    rows = (RankRow(2, "", None, "missing"),)
    report = msgspec.structs.replace(blames(2, waiting=(0,)), ranks=rows)
    groupless = [msgspec.structs.replace(process, groups=()) for process in snapshot.processes]
    trace = trace_of(msgspec.structs.replace(snapshot, world_size=3, processes=tuple(groupless)), report)
    assert trace.processes[2] == "culprit, rank"
    (missing,) = trace.on(2, "state")
    assert (missing["name"], missing["ts"]) == ("missing", 0)
    assert missing["dur"] == trace.about["snapshot taken at, microseconds"]
    assert trace.waits_for() == {(0, 2)}


def test_processes_without_a_rank_of_their_own_are_drawn_apart() -> None:
    process = hung(2).processes[0]
    again = msgspec.structs.replace(process, pid=77)
    none = msgspec.structs.replace(process, pid=78, claimed_rank=None, launcher_rank=None)
    earlier = msgspec.structs.replace(process, pid=79, attempt=-1)
    snapshot = Snapshot(taken_at=START + 100, world_size=1, processes=(process, again, none, earlier))
    trace = trace_of(snapshot, Report("why"))
    assert sorted(trace.processes.values()) == [
        "host-a, attempt -1, pid 79, also rank 0, number", "host-a, pid 1000, also rank 0, number",
        "host-a, pid 78, no rank, number", "host-a, rank", "verdict, world size",
    ]  # fmt: skip


def test_only_members_of_the_group_are_waited_for() -> None:
    job = Job(4)
    pair = job.group(0, 1)
    job[0].waits_in("all_reduce", 5, pair)
    for rank in (1, 2, 3):
        job[rank].doing("idle", 9)
    snapshot = job.snapshot()
    assert trace_of(snapshot, blames(3, 1, waiting=(0,))).waits_for() == {(0, 1)}
    assert trace_of(snapshot, blames(3, 2, waiting=(0,))).waits_for() == set()


def test_culprits_wait_for_each_other_but_not_for_those_in_the_same_operation() -> None:
    job = Job(3)
    one, other = job.group(0, 1, 2), job.group(2, 1, 0)
    job[0].waits_in("all_reduce", 5, one)
    job[1].waits_in("all_reduce", 5, one)
    job[2].waits_in("all_reduce", 6, other)
    trace = trace_of(job.snapshot(), blames(0, 1, 2))
    assert trace.waits_for() == {(0, 2), (1, 2), (2, 0)}


def test_the_order_of_processes_does_not_matter() -> None:
    snapshot = hung()
    report = diagnose(snapshot)
    turned = msgspec.structs.replace(snapshot, processes=snapshot.processes[::-1])
    assert to_perfetto(report, turned) == to_perfetto(report, snapshot)


def test_the_parts_make_the_whole() -> None:
    snapshot = hung()
    report = diagnose(snapshot)
    parts = list(trace_parts(report, snapshot))
    assert "".join(parts) == to_perfetto(report, snapshot)
    assert max(map(len, parts)) < 5_000


# --- bounds -----------------------------------------------------------------------------------------------------


def long_rings(lengths: list[int]) -> Snapshot:
    processes = []
    for rank, length in enumerate(lengths):
        ring = tuple(Event(n, START + n, "forward", step=n) for n in range(length))
        processes.append(Process("h", 100 + rank, claimed_rank=rank, ring=ring))
    return Snapshot(taken_at=START + max(lengths), world_size=len(lengths), processes=tuple(processes))


def test_the_newest_events_are_kept_and_short_rings_are_kept_whole() -> None:
    snapshot = long_rings([5_000, 10, 5_000])
    trace = trace_of(snapshot, Report("why"), most_events=4_000)
    assert len(trace.events) <= 4_000
    kept = [len(trace.on(rank, "phases")) for rank in range(3)]
    assert kept[1] == 10
    assert kept[0] == kept[2] > 1_000
    assert trace.on(0, "phases")[-1]["args"]["step"] == 4_999
    assert trace.about["left out"]["old events of rings"] == 10_010 - sum(kept)
    assert trace.about["left out"]["step counters of ranks"] == 3


def test_everything_is_kept_where_there_is_room() -> None:
    trace = trace_of(long_rings([50, 10]), Report("why"), most_events=4_000)
    assert [len(trace.on(rank, "phases")) for rank in range(2)] == [50, 10]
    assert trace.about["left out"] == {}


def test_arrows_are_bounded_and_every_host_has_some() -> None:
    job = Job(640)
    for rank in job.ranks:
        rank.set(host=f"host-{rank.rank // 8:02d}")
        if rank.rank == 333:
            rank.doing("idle", 9)
        else:
            rank.waits_in("barrier", 10)
    trace = trace_of(job.snapshot(), blames(333, waiting=(rank for rank in range(640) if rank != 333)))
    assert len(trace.arrows) == MOST_ARROWS
    assert {source // 8 for source, _ in trace.waits_for()} == set(range(80))
    assert trace.about["left out"] == {"arrows": 639 - MOST_ARROWS}


# --- text of the job is data ------------------------------------------------------------------------------------

HOSTILE = {
    "controls": "a\x00\x1b[2J\r\nb\x7f\x9b",
    "surrogates": "half \udc80 \ud800",
    "quotes": '"}],"traceEvents":[{"ph":"X"}]} \\',
    "turning": "train\u202eyp.niart\u2066\u200f",
    "separators": "a\u2028b\u2029c",
    "markup": "</script><b>&amp;",
    "long": "x" * 1_000_000,
}


def made_of(text: str, number: int = 2**70) -> tuple[Report, Snapshot]:
    """A job with `text` in every place that takes one, and `number` in every place that takes any."""
    frame = Frame(text, number, text)
    wait = Wait(
        "collective", text, text, text, number, text, number, (number,), text, text, number, None, number, number,
        frame, START + 2,
    )  # fmt: skip
    ring = tuple(
        Event(
            n, START + n, kind, number, text, text, text, number, number, text, text, number, number, number, number,
            number, frame, None,
        )
        for n, kind in enumerate(("collective", "send", "wait", "forward", "exception", "exit"))
    )  # fmt: skip
    note = ExceptionNote(text, text, (frame,), (text,), START + 3)
    process = Process(
        text, number, claimed_rank=0, attempt=number, local_rank=number, ring=ring,
        exit_note=ExitNote("exception", START + 4, number, frame, note), exit=Exit(number, number, START + 4),
        handled=(note,), devices=(text,), versions={text: text},
        threads=(Thread(1, text, True, "data", START + 2, frame, number, wait), Thread(2, text, wait=wait)),
        groups=(Group(text, text, text, text, (0,)),), log_tail=(text,),
    )  # fmt: skip
    snapshot = Snapshot(taken_at=START + 10, world_size=number, processes=(process,), command=(text,))
    report = blames(0, waiting=(0,), sentence=text)
    assert report.verdict is not None
    verdict = msgspec.structs.replace(
        report.verdict, pitfall=text, title=text, why=text, fix=(text,), confidence=math.nan
    )
    row = RankRow(0, text, number, "waiting", number, text)
    incidents = (Incident(number, START + 1, verdict), Incident(0, math.nan, verdict))
    return msgspec.structs.replace(report, verdict=verdict, ranks=(row,), incidents=incidents), snapshot


def hex_id(number: int) -> str:
    """A name for pytest, which cannot write long numbers."""
    return hex(number)[:20]


@pytest.mark.parametrize("name", HOSTILE)
def test_text_of_the_job_is_data(name: str) -> None:
    report, snapshot = made_of(HOSTILE[name])
    text = to_perfetto(report, snapshot)
    trace = Trace(text)
    assert len(text) < 200_000
    assert trace.names(0, "collectives")
    for line in text.split("\n"):
        assert line.isprintable()


@pytest.mark.parametrize("number", [-(2**80), -1, 2**53 + 1, 2**64, 1 << 20_000], ids=hex_id)
def test_numbers_of_the_job_are_data(number: int) -> None:
    report, snapshot = made_of("x", number)
    trace = trace_of(snapshot, report)
    (forward,) = [one for one in trace.on(0, "phases") if one["name"] == "forward"]
    assert forward["args"]["step"] == (number if abs(number) < 2**53 else hex(number)[:40])


events = st.builds(
    Event,
    index=st.integers(0, 9),
    time=st.one_of(st.integers(0, 30).map(lambda n: START + n), st.floats()),
    kind=st.sampled_from(["collective", "send", "recv", "wait", "forward", "step", "batch", "exception", "exit"]),
    op=st.sampled_from(["", "all_reduce", "gloo:barrier"]),
    group=st.sampled_from(["", "0-3#0"]),
    seq=st.none() | st.integers(0, 3),
    peer=st.none() | st.integers(0, 3),
    step=st.none() | st.integers(0, 3),
    ended=st.none() | st.integers(0, 30).map(lambda n: START + n) | st.floats(),
)
waits = st.builds(
    Wait,
    kind=st.sampled_from(["collective", "p2p", "device"]),
    op=st.sampled_from(["", "all_reduce", "send"]),
    group=st.sampled_from(["", "0-3#0"]),
    seq=st.none() | st.integers(0, 3),
    peer=st.none() | st.integers(0, 5),
    since=st.none() | st.integers(0, 40).map(lambda n: START + n),
)
threads = st.builds(
    Thread,
    tid=st.integers(1, 9),
    main=st.booleans(),
    phase=st.sampled_from(["idle", "forward", "optimizer"]),
    phase_since=st.none() | st.integers(0, 40).map(lambda n: START + n),
    wait=st.none() | waits,
)
processes = st.builds(
    Process,
    host=st.sampled_from(["", "a", "b"]),
    pid=st.integers(0, 9),
    attempt=st.integers(0, 1),
    claimed_rank=st.none() | st.integers(-1, 3),
    ring=st.lists(events, max_size=12).map(tuple),
    threads=st.lists(threads, max_size=3).map(tuple),
    exit=st.none() | st.builds(Exit, code=st.just(1), time=st.integers(0, 40).map(lambda n: START + n)),
    dump=st.none() | st.just(Dump("d")),
    groups=st.just(()) | st.just((Group("0-3#0", members=(0, 1, 2, 3), finished=1),)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(processes, max_size=4), st.integers(0, 40), st.lists(st.integers(-1, 5), max_size=2))
def test_the_trace_of_any_job_is_well_formed(found: list[Process], at: int, culprits: list[int]) -> None:
    snapshot = Snapshot(taken_at=START + at, world_size=4, processes=tuple(found))
    report = msgspec.structs.replace(
        blames(*culprits, waiting=range(4)), ranks=tuple(RankRow(rank, "", None, "missing") for rank in range(4))
    )
    trace_of(snapshot, report)


# --- as Perfetto reads it ---------------------------------------------------------------------------------------

TRACKS = """
    from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
"""
FLOWS = """
    select source_process.pid as source, target_process.pid as target, source.name as waits, target.name as awaited
    from flow
    join slice source on source.id = slice_out join thread_track source_track on source_track.id = source.track_id
    join thread source_thread on source_thread.utid = source_track.utid
    join process source_process on source_process.upid = source_thread.upid
    join slice target on target.id = slice_in join thread_track target_track on target_track.id = target.track_id
    join thread target_thread on target_thread.utid = target_track.utid
    join process target_process on target_process.upid = target_thread.upid
    order by 1
"""


@needs_perfetto
@pytest.mark.parametrize("name", [*JOBS, "hostile"])
def test_perfetto_reads_every_slice_and_counter_and_complains_of_nothing(name: str) -> None:
    if name == "hostile":
        report, snapshot = made_of("".join(HOSTILE.values()))
    else:
        snapshot = JOBS[name]()
        report = diagnose(snapshot)
    text = to_perfetto(report, snapshot)
    trace = Trace(text)
    with TraceProcessor(text) as perfetto:
        assert perfetto.query("select name, value from stats where severity != 'info' and value != 0") == []
        read = perfetto.query(
            f"select pid, tid, ts, dur, slice.name as name, depth {TRACKS} where dur > 0 order by pid, tid, ts"
        )
        meant = sorted(
            ((one["pid"], one["tid"], one["ts"] * 1000, one["dur"] * 1000, one["name"]) for one in trace.events
             if one["ph"] == "X" and one["dur"] > 0),
            key=lambda one: one[:3],
        )  # fmt: skip
        assert [tuple(row.values()) for row in read] == [(*one, 0) for one in meant]
        counters = sum(one["ph"] == "C" for one in trace.events)
        assert perfetto.values("select count(*) from counter") == [counters]
        assert perfetto.values("select count(*) from flow") == [len(trace.arrows)]


@needs_perfetto
def test_perfetto_shows_ranks_tracks_arrows_and_args_as_meant() -> None:
    snapshot = hung()
    report = diagnose(snapshot)
    assert report.verdict is not None
    with TraceProcessor(to_perfetto(report, snapshot)) as perfetto:
        assert perfetto.query("select pid, name from process where name is not null order by pid") == [
            {"pid": 0, "name": "host-a, rank"},
            {"pid": 1, "name": "host-a, culprit, rank"},
            {"pid": 2, "name": "host-a, rank"},
            {"pid": 3, "name": "host-a, rank"},
            {"pid": 4, "name": "verdict, world size"},
        ]
        assert perfetto.values(
            f"select distinct thread.name {TRACKS} where pid = 1 and not is_main_thread order by tid"
        ) == ["state", "awaited", "phases"]
        assert perfetto.query(FLOWS) == [
            {"source": rank, "target": 1, "waits": "waiting in barrier #4", "awaited": "awaited by ranks 0, 2-3"}
            for rank in (0, 2, 3)
        ]
        args = perfetto.query(
            f"select key, display_value as value from args where arg_set_id = "
            f"(select slice.arg_set_id {TRACKS} where pid = 0 and thread.name = 'collectives') order by key"
        )
        assert {row["key"]: row["value"] for row in args} == {
            "args.dtype": "float32", "args.end": "not completed", "args.group": "0-3#0", "args.key": "0-3#0 #4",
            "args.numel": "1", "args.outer": "barrier", "args.seq": "4", "args.site": "/home/me/train.py:10 in main",
            "args.step": "3",
        }  # fmt: skip
        assert perfetto.values(
            "select count(distinct track_id) from slice join args using (arg_set_id) "
            "where args.key = 'args.key' and display_value = '0-3#0 #4' and category = 'collective'"
        ) == [3]
        assert (
            perfetto.values("select name from slice where category = 'verdict' order by dur")
            == [report.verdict.sentence] * 2
        )


@needs_perfetto
def test_the_query_of_the_documentation_tells_who_came_last() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "timelines.md").read_text(encoding="utf-8")
    sql = page.split("```sql\n")[1].split("```")[0]
    with TraceProcessor(to_perfetto(diagnose(dumps("gloo")), dumps("gloo"))) as perfetto:
        first, *_, last = perfetto.query(sql)
    assert first == {"key": "0-1#0 #1", "last_rank": 1, "nanoseconds": 250_000_000}
    assert last["nanoseconds"] == 0
