"""The roll: a snapshot indexed by rank, with each rank's standing. Everything else judges from here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from rankcall.diagnose import echoes
from rankcall.diagnose.frames import innermost_user
from rankcall.diagnose.log_text import exception_in_log
from rankcall.diagnose.source import Program
from rankcall.snapshot import Event, ExceptionNote, Frame, Group, Process, Snapshot, Thread, Wait

SETTLED_S = 0.4  # two looks half a second apart, less the looks' own length

LINGERING_S = 0.5  # between a process's last word and its end; more means that it did not end by itself

MOST_RANKS = 1 << 20
MOST_MEMBERS = 1 << 23  # of all groups of a snapshot together; more were not written by rankcall

# A library that fails while the interpreter ends: `terminate called without an active exception`, or a null pointer.
_TEARDOWN_SIGNALS = (6, 11)

# exception: its own error; exit: it called exit with a code that is no success; left: code 0; killed: by the
# launcher's clean-up or on request, which says nothing; echo: another rank's failure reached it.
Ending = Literal["exception", "exit", "left", "signal", "abort", "echo", "killed", "unknown"]

_NATURES: dict[echoes.Nature, Ending] = {"own": "exception", "echo": "echo", "stopped": "killed"}
_NO_THREAD = Thread(tid=0, main=True)
COMPARABLE = frozenset({"collective", "send", "recv", "forward", "eval-forward", "backward", "step"})


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one rank stands. `wait` is what it waits in, or waited in when an echo or the launcher ended it;
    `likely` marks a wait that was inferred from its phase. `ended_at` is by the snapshot's clock."""

    rank: int
    process: Process
    thread: Thread
    ending: Ending | None
    ended_at: float | None
    exception: ExceptionNote | None
    wait: Wait | None = None
    likely: bool = False

    @property
    def alive(self) -> bool:
        """Still a running process, as far as was seen."""
        return self.ending is None

    @property
    def present(self) -> bool:
        """Alive, or ended by the launcher's clean-up: what it did until then is what counts."""
        return self.ending in (None, "killed")

    @property
    def innocent_end(self) -> bool:
        """Ended only because of others: where it stood before is what counts."""
        return self.ending in ("echo", "killed", "abort")

    @property
    def last(self) -> Event | None:
        """Its last event that other ranks share, or a wait for one."""
        for event in reversed(self.process.ring):
            if event.kind in COMPARABLE or event.kind in ("wait", "new-group", "init"):
                return event
        return None

    @property
    def settled(self) -> bool:
        """Its record did not change over two looks, or it cannot change any more."""
        return not self.present or self.thread.stable_for >= SETTLED_S


@dataclass(frozen=True, eq=False)
class Roll:
    """All standings of the judged attempt. `claims` holds, for a rank that several live processes claim, all of
    them; `strangers` are processes without a rank."""

    snapshot: Snapshot
    standings: dict[int, Standing]
    world_size: int
    claims: dict[int, tuple[Process, ...]]
    strangers: tuple[Process, ...]
    program: Program
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def where_now(self, rank: int) -> Frame | None:
        """The user's line a rank is at, or was last seen at."""
        standing = self.standings.get(rank)
        return None if standing is None else place_now(standing, self.snapshot)

    def host(self, rank: int) -> str:
        standing = self.standings.get(rank)
        return standing.process.host if standing is not None else ""

    def hosts(self, ranks: Iterable[int]) -> tuple[str, ...]:
        found = dict.fromkeys(self.host(rank) for rank in ranks)
        return tuple(host for host in found if host)

    @cached_property
    def groups(self) -> dict[str, Group]:
        """Each group as the lowest rank that knows it does."""
        found: dict[str, Group] = {}
        for standing in self.standings.values():
            for group in standing.process.groups:
                found.setdefault(group.key, group)
        return found

    @property
    def over(self) -> bool:
        """Some rank has ended badly: the job is not going on, whatever still lives."""
        return any(s.ending not in (None, "left", "killed") for s in self.standings.values())

    def place_name(self, rank: int) -> str:
        """`rank 2 on host-a` where there is more than one host or the host is known."""
        host = self.host(rank)
        return f"rank {rank} on {host}" if host else f"rank {rank}"


def place_now(standing: Standing, snapshot: Snapshot) -> Frame | None:
    """Its wait's call site, else its exception, else its stack, else the phase's or the last event's site."""
    sources = snapshot.sources
    if standing.exception is not None and standing.ending in ("exception", "echo"):
        found = innermost_user(reversed(standing.exception.frames), sources)
        if found is not None:
            return found
    if standing.wait is not None and standing.wait.site is not None:
        return standing.wait.site
    found = innermost_user(standing.thread.stack, sources)
    if found is not None:
        return found
    note = standing.process.exit_note
    if note is not None and note.site is not None:
        return note.site
    if standing.thread.phase_site is not None and standing.ending != "left":
        return standing.thread.phase_site
    return next((event.site for event in reversed(standing.process.ring) if event.site is not None), None)


def acting_thread(process: Process) -> Thread:
    """The thread that trains: the main one, unless only another one has started operations."""
    main = next((thread for thread in process.threads if thread.main), None)
    if main is not None and (main.collectives or main.wait is not None or main.phase not in ("idle", "exit")):
        return main
    others = [thread for thread in process.threads if thread is not main]
    busiest = max(others, key=lambda thread: thread.collectives, default=None)
    if busiest is not None and busiest.collectives and (main is None or not main.collectives):
        return busiest
    return main or busiest or _NO_THREAD


def _ending(process: Process, snapshot: Snapshot) -> tuple[Ending | None, ExceptionNote | None]:
    """How a process ended, judged from its own note first and from outside second."""
    end, note = process.exit, process.exit_note
    gone = end is not None or process.state in ("gone", "zombie")
    if not gone and note is None:
        return None, None
    if note is not None and note.exception is not None and (note.kind == "exception" or note.code not in (None, 0)):
        # With `except …: sys.exit(1)` too, as torch.multiprocessing does it; whoever ended the process in the end.
        return _NATURES[echoes.nature(note.exception)], note.exception
    if end is not None and end.killed_by_launcher:
        return ("left" if _was_leaving(process, snapshot) else "killed"), None
    if end is not None and end.signal in _TEARDOWN_SIGNALS and note is not None and not note.code:
        return "left", None  # its program was done; what failed was the clean-up after it
    if end is not None and end.signal is not None:
        return ("abort" if end.signal == 6 and echoes.aborted_by_library(process) else "signal"), None
    return _ending_by_code(process)


def _was_leaving(process: Process, snapshot: Snapshot) -> bool:
    """True when it had said goodbye before the launcher's signal came; a handler of that signal may say it too."""
    note, end = process.exit_note, process.exit
    if note is None or note.code not in (None, 0):
        return False
    if snapshot.reason != "end":
        return note.time - process.clock_offset < snapshot.taken_at
    return end is not None and end.time is not None and end.time - note.time > LINGERING_S


def _ending_by_code(process: Process) -> tuple[Ending | None, ExceptionNote | None]:
    end, note = process.exit, process.exit_note
    code = end.code if end is not None and end.code is not None else note.code if note is not None else None
    if code == 0 or (code is None and note is not None and note.kind in ("finish", "exit")):
        return "left", None
    logged = exception_in_log(process.log_tail)
    if logged is not None and (note is None or note.kind != "exit"):
        return _NATURES[echoes.nature(logged)], logged
    return ("unknown" if code is None else "exit"), None


def _ended_at(process: Process, exception: ExceptionNote | None) -> float | None:
    times = (
        exception.time if exception is not None else None,
        process.exit_note.time if process.exit_note is not None else None,
        process.exit.time if process.exit is not None else None,
    )
    found = next((time for time in times if time is not None), None)
    return None if found is None else found - process.clock_offset


def standing_of(process: Process, rank: int, snapshot: Snapshot) -> Standing:
    """A rank's standing before its wait is known (waits.py adds that)."""
    ending, exception = _ending(process, snapshot)
    return Standing(
        rank=rank,
        process=process,
        thread=acting_thread(process),
        ending=ending,
        ended_at=_ended_at(process, exception) if ending is not None else None,
        exception=exception,
    )


def call_roll(snapshot: Snapshot) -> Roll:
    """Index the processes of the judged attempt. Of several processes with one rank the latest live one counts."""
    by_rank: dict[int, list[Process]] = {}
    strangers: list[Process] = []
    for process in snapshot.processes:
        if process.attempt != snapshot.attempt:
            continue
        if process.rank is None:
            strangers.append(process)
        else:
            by_rank.setdefault(process.rank, []).append(process)
    claims = {
        rank: tuple(processes)
        for rank, processes in by_rank.items()
        if len({(p.host, p.pid, p.start_time) for p in processes}) > 1
    }
    standings = {}
    for rank, processes in sorted(by_rank.items()):
        latest = max(processes, key=lambda p: (p.exit is None, p.initialized != "no", p.start_time))
        standings[rank] = standing_of(latest, rank, snapshot)
    world_size = snapshot.world_size or max((process.world_size or 0 for process in snapshot.processes), default=0)
    world_size = min(world_size, MOST_RANKS)
    return Roll(
        snapshot=snapshot,
        standings=standings,
        world_size=world_size or len(standings),
        claims=claims,
        strangers=tuple(strangers),
        program=Program(snapshot.sources),
        members=_members(snapshot, standings),
    )


def _members(snapshot: Snapshot, standings: dict[int, Standing]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    left = MOST_MEMBERS
    for key, runs in snapshot.group_members.items():
        left -= sum(last - first + 1 for first, last in runs)
        if left < 0:
            break
        found[key] = tuple(rank for first, last in runs for rank in range(first, last + 1))
    for standing in standings.values():
        for group in standing.process.groups:
            if group.members and len(group.members) >= len(found.get(group.key, ())):
                found[group.key] = group.members
    return found
