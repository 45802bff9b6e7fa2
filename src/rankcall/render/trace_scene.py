"""What all tracks of a trace have to agree on: who is drawn under which number, when the trace begins, how times of
several machines become one, and how texts of the job are made safe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rankcall.findings import RankRow, Report, Where
from rankcall.render import plain
from rankcall.render.trace_events import number
from rankcall.snapshot import Event, Frame, Process, Snapshot, Thread, Wait

MOST_PROCESSES = 10_000
MOST_THREADS = 8  # of one rank, beside its main thread, that wait
# At most this many events of a process come from elsewhere than its ring: names, state, waits, notes, arrows.
BESIDE_THE_RING = 120

_YEAR = 366 * 86_400.0
_LATEST = 9e9  # in the year 2255: the last one whose nanoseconds readers can count
_NO_RANK = 1_000_000  # numbers of processes that have no rank, or not alone, start here
_MOST_TEXTS = 100_000


@dataclass(frozen=True, slots=True)
class DrawnRank:
    """A process to draw, `number` being its pid in the trace. `ended` is when, by the clock of the snapshot.

    A rank that nobody started is drawn too: then `process` holds no more than its rank, and `absent` is true.
    """

    process: Process
    number: int
    row: RankRow | None
    culprit: bool
    main: Thread | None
    ended: float | None
    absent: bool = False

    @property
    def wait(self) -> Wait | None:
        return self.main.wait if self.main is not None else None


class Scene:
    """`left_out` counts what is not drawn, by its description."""

    def __init__(self, report: Report, snapshot: Snapshot, most_events: int) -> None:
        self.report, self.snapshot = report, snapshot
        self.left_out: Counter[str] = Counter()
        self._texts: dict[str, str] = {}
        self._places: dict[Frame, str] = {}
        self._members: dict[str, frozenset[int]] = {}
        self._taken_at = snapshot.taken_at if 0.0 < snapshot.taken_at < _LATEST else None
        self.ranks = self._ranks()
        self.verdict_number = self._free_number(snapshot.world_size or len(self.ranks))
        # Tracks are numbered from here on: Perfetto takes one with the number of its process for a main thread.
        highest = max((rank.number for rank in self.ranks if rank.number < _NO_RANK), default=0)
        self.first_track = 10 ** len(str(max(highest, self.verdict_number % _NO_RANK)))
        self._share_room(most_events)

        self.begin, self.end = 0.0, 0.0
        # By group and sequence number: when the last rank came to it, and how many came.
        self.arrivals: dict[tuple[str, int], tuple[float, int]] = {}
        self._measure()

    # --- who ---------------------------------------------------------------------------------------------------

    def _ranks(self) -> list[DrawnRank]:
        """The culprits first, then by rank."""
        report, attempt = self.report, self.snapshot.attempt
        culprits = frozenset(report.verdict.culprits) if report.verdict is not None else frozenset()
        rows = {(row.rank, row.host, row.pid or None): row for row in report.ranks}
        started = {process.rank for process in self.snapshot.processes}
        absent = [
            Process(host=row.host, pid=0, attempt=attempt, launcher_rank=row.rank)
            for row in report.ranks
            if row.pid is None and row.rank not in started
        ]

        def order(process: Process) -> tuple[Any, ...]:
            rank, current = process.rank, process.attempt == attempt
            guilty = current and rank in culprits
            return not guilty, rank is None, rank or 0, not current, process.attempt, process.host, process.pid

        found: list[DrawnRank] = []
        used: set[int] = set()
        ordered = sorted([*self.snapshot.processes, *absent], key=order)
        for process in ordered[:MOST_PROCESSES]:
            rank = process.rank
            alone = rank is not None and 0 <= rank < _NO_RANK and rank not in used
            ident = rank if alone and rank is not None else _NO_RANK + len(found)
            used.add(ident)
            found.append(
                DrawnRank(
                    process=process,
                    number=ident,
                    row=rows.get((rank, process.host, process.pid or None)),
                    culprit=process.attempt == attempt and rank in culprits,
                    main=next((one for one in process.threads if one.main), next(iter(process.threads), None)),
                    ended=self._ended(process),
                    absent=process.pid == 0 and rank not in started,
                )
            )
        self.left_out["processes"] += len(ordered) - len(found)
        return found

    def _ended(self, process: Process) -> float | None:
        seen = self.time(process, process.exit.time) if process.exit is not None else None
        if seen is not None or process.exit_note is None:
            return seen
        return self.time(process, process.exit_note.time)

    def _free_number(self, wanted: int) -> int:
        """`wanted` if no rank has it, else one that no process has."""
        used = {rank.number for rank in self.ranks}
        return wanted if 0 <= wanted < _NO_RANK and wanted not in used else _NO_RANK + len(self.ranks)

    def members(self, process: Process, group: str) -> frozenset[int]:
        """The ranks of a group, empty if nobody told. Its key is equal on all of them."""
        found = self._members.get(group)
        if found is None:
            own = next((one.members for one in process.groups if one.key == group), ())
            runs = self.snapshot.group_members.get(group, ())
            ranks = own or (rank for first, last in runs for rank in range(first, min(last, first + _NO_RANK) + 1))
            found = self._members[group] = frozenset(ranks)
        return found

    # --- how much ----------------------------------------------------------------------------------------------

    def _share_room(self, most_events: int) -> None:
        """Each rank may keep the same number of its newest events; step counters only where there is room."""
        lengths = [len(rank.process.ring) for rank in self.ranks]
        room = max(most_events - BESIDE_THE_RING * (len(lengths) + 10), 0)
        self._share = _share(lengths, room)
        self.with_steps = 2 * sum(lengths) <= room
        self.left_out["old events of rings"] += sum(max(length - self._share, 0) for length in lengths)
        if not self.with_steps:
            self.left_out["step counters of ranks"] += len(lengths)

    def ring(self, rank: DrawnRank) -> list[tuple[float, Event]]:
        """The events that are drawn, oldest first. Rings are in their writer's order, which may differ a little."""
        process = rank.process
        kept = process.ring[max(len(process.ring) - self._share, 0) :]
        timed = [(self.time(process, event.time), event) for event in kept]
        found = [(time, event) for time, event in timed if time is not None]
        found.sort(key=lambda one: (one[0], one[1].index))
        return found

    # --- when --------------------------------------------------------------------------------------------------

    def time(self, process: Process, time: float | None) -> float | None:
        """A time of the process's machine by the clock of the snapshot; None if it cannot be true."""
        if time is None or not 0.0 < time < _LATEST:
            return None
        offset = process.clock_offset
        at = time - offset if abs(offset) < _YEAR else time
        return at if self._taken_at is None or abs(at - self._taken_at) <= _YEAR else None

    def _measure(self) -> None:
        """Find where the trace begins and ends, and when the last rank came to each collective."""
        times: list[float] = [] if self._taken_at is None else [self._taken_at]
        for rank in self.ranks:
            process, main, ring = rank.process, rank.main, self.ring(rank)
            self.left_out["events with an impossible time"] += min(len(process.ring), self._share) - len(ring)
            times += [ring[0][0], ring[-1][0]] if ring else []
            waits = [one.wait for one in process.threads[: 1 + MOST_THREADS] if one.wait is not None]
            seen = [rank.ended, *(self.time(process, wait.since) for wait in waits)]
            seen.append(self.time(process, main.phase_since) if main is not None else None)
            times += [time for time in seen if time is not None]
            for time, event in ring:
                if event.kind == "collective" and event.seq is not None:
                    key = event.group, event.seq
                    last, count = self.arrivals.get(key, (time, 0))
                    self.arrivals[key] = max(last, time), count + 1
        self.begin, self.end = min(times, default=0.0), max(times, default=0.0)

    def micros(self, time: float) -> int:
        """A time as the trace counts it."""
        return round((time - self.begin) * 1e6)

    @property
    def now(self) -> int:
        """The moment of the snapshot."""
        return self.micros(self.end if self._taken_at is None else self._taken_at)

    def state_span(self, rank: DrawnRank) -> tuple[int, int]:
        """From when to when the rank is in the state that the roll call tells: up to the snapshot."""
        process, main, now = rank.process, rank.main, self.now
        candidates: list[float | None] = []
        if rank.ended is not None and self.micros(rank.ended) <= now:
            candidates.append(rank.ended)
        elif rank.absent:
            candidates.append(self.begin)
        elif main is not None:
            candidates += [
                self.time(process, main.wait.since) if main.wait is not None else None,
                self.time(process, main.phase_since),
            ]
        found = next((time for time in candidates if time is not None), None)
        if found is None:
            ring = self.ring(rank)
            found = ring[-1][0] if ring else None
        start = min(self.micros(found), now) if found is not None else now
        return start, max(now, start + 1)

    # --- text --------------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """A short text of the job, made safe; there are few different ones."""
        safe = self._texts.get(text)
        if safe is None:
            safe = plain.line(text, 200)
            if len(self._texts) < _MOST_TEXTS:
                self._texts[text] = safe
        return safe

    def place(self, frame: Frame | Where | None) -> str | None:
        """`/home/me/train.py:48 in main`."""
        if frame is None or not frame.file:
            return None
        key = Frame(frame.file, frame.line, frame.function)
        found = self._places.get(key)
        if found is None:
            found = plain.line(frame.file, 300) + (f":{number(frame.line)}" if frame.line > 0 else "")
            found += f" in {plain.line(frame.function, 80)}" if frame.function else ""
            if len(self._places) < _MOST_TEXTS:
                self._places[key] = found
        return found

    def operation(self, op: str, peer: int | None = None) -> str:
        """`all_reduce` of "gloo:all_reduce"; for point-to-point with whom: `send to 3`."""
        name = self.text(op.rpartition(":")[2])
        if peer is None:
            return name
        return f"{name} {'from' if name.endswith('recv') else 'to'} {number(peer)}"

    def operation_args(self, one: Wait | Event) -> dict[str, object]:
        """What names and measures an operation. `key` is equal on all ranks that met in it."""
        return {
            "key": f"{self.text(one.group)} #{number(one.seq)}" if one.group and one.seq is not None else None,
            "group": self.text(one.group) if one.group else None,
            "seq": number(one.seq),
            "outer": self.text(one.outer) if one.outer else None,
            "numel": number(one.numel),
            "dtype": self.text(one.dtype) if one.dtype else None,
            "reduce op": self.text(one.reduce_op) if one.reduce_op else None,
            "root": number(one.root),
            "peer": number(one.peer),
            "tag": number(one.tag),
            "nth": number(one.nth),
        }


def _share(lengths: Sequence[int], room: int) -> int:
    """The largest number that each may keep at most so that all together fit into `room`."""
    left = room
    for place, length in enumerate(sorted(lengths)):
        each = left // (len(lengths) - place)
        if length > each:
            return each
        left -= length
    return max(lengths, default=0)
