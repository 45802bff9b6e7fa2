"""The watcher of one machine: a thread beside the launcher that looks at the ranks' records four times a second,
judges when they stand still, and writes the snapshot and the report.

It reads; the only things it does to a rank are a stack signal and a question to its flight recorder, and neither to
a rank whose record moves.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from rankcall.diagnose import diagnose
from rankcall.diagnose.readers.flight_recorder import Dump
from rankcall.findings import Incident, Report, Verdict, report_to_json
from rankcall.record import start as rank_start
from rankcall.rundir import RunFolder, local_memory_folder
from rankcall.snapshot import ExceptionNote, Exit, Process, Snapshot, snapshot_to_json
from rankcall.watch import processes
from rankcall.watch.asking import Asked, ask_dumps, ask_py_spy, ask_stacks, stack_of_the_dead
from rankcall.watch.gathering import (
    Stacks,
    port_holders,
    port_of,
    process_of,
    sources_of,
    unrecorded,
    with_children,
)
from rankcall.watch.joining import Meeting, Store, merged
from rankcall.watch.live import remove_stale, write_mark
from rankcall.watch.looks import STABLE, Look, Unseen, may_ask, may_signal
from rankcall.watch.quiet import QuietRule
from rankcall.watch.started import StartedRank

INTERVAL = 0.25
# Ages of a standstill at which it is judged: proofs need the first or second; a frozen process two seconds.
JUDGE_AT = (0.5, 1.0, 1.5, 2.1, 3.0, 5.0, 10.0)
ASK_LIMIT = 0.3
STATUS_AFTER = 10.0
UNSEEN_EVERY = 5.0  # seconds between two judgements of ranks of which only stacks are known
EXIT_GRACE = 5.0  # seconds that a rank which has raised or returned may take to end
# Said of ranks that are alive and working: a note at the end, or a passing word, never a reason to stop the job.
SLOW_NOT_STUCK = frozenset({"slow-checkpoint", "slow-preprocessing", "straggler"})

Reason = Literal["stall", "exit", "end", "interrupt", "request"]
Outcome = Literal["completed", "crashed", "stopped", "hung"]


class Watcher:
    """Watches one run. All public methods may be called from any thread; none raises for what a rank does.

    `on_report` gets each new verdict while the job runs, and a report without one when the job moves on and the last
    verdict is withdrawn. `on_stop` is called once, with --on-hang stop, when the job should be ended.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        command: Sequence[str],
        stall_after: float | None,
        on_report: Callable[[Report], None],
        on_stop: Callable[[Report], None] | None = None,
        on_status: Callable[[str], None] | None = None,
    ) -> None:
        self.folder = folder
        # What is no UTF-8 could not be written as JSON.
        self.command = tuple(os.fsencode(part).decode("utf-8", "replace") for part in command)
        remove_stale()
        self.records = local_memory_folder(folder.id)
        self.started_at = time.time()
        self.attempt = 0
        self.incidents: list[Incident] = []
        self._on_report, self._on_stop, self._on_status = on_report, on_stop, on_status
        self._quiet = QuietRule(stall_after)
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._looks: dict[str, Look] = {}
        self._bad_records: set[str] = set()
        self._old_pids: set[int] = set()
        self._started: dict[int, StartedRank] = {}
        self._world_size: int | None = None
        self._exits: dict[int, Exit] = {}
        self._logs: dict[int, Sequence[Path]] = {}
        self._unseen: dict[int, Unseen] = {}  # started ranks without a record, by pid
        self._last_look: float | None = None
        self._standstill: tuple[object, ...] = ()
        self._standing_for = 0.0
        self._unknown_said: tuple[object, ...] = ()
        self._judged_at = 0.0
        self._judged_unseen = 0.0
        self._stop_asked = False
        self._being_ended = False  # by us, or by whoever interrupted the launcher: ends from now on say nothing
        self._status_said = self._unrecorded_said = False
        self._oom_before = processes.oom_kills()
        self._active: tuple[Verdict, Snapshot, dict[int, int]] | None = None  # the verdict that stands
        self._at_failure: Snapshot | None = None
        self._launcher_error: ExceptionNote | None = None
        self._processes_seen: list[str] = []  # of this node, when the ranks did not line up
        self._meeting: Meeting | None = None
        write_mark(self.records, self.folder.path, self.command, self.started_at)

    # --- what the launcher tells -------------------------------------------------------------------------------

    def rank_environment(self) -> dict[str, str]:
        """Variables that make every Python process below us record itself."""
        inject = str(Path(rank_start.__file__).parent / "inject")
        existing = os.environ.get("PYTHONPATH", "")
        return {
            "PYTHONPATH": inject + (os.pathsep + existing if existing else ""),
            rank_start.FOLDER: str(self.records),
            rank_start.LAUNCHER: str(os.getpid()),
        }

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="rankcall-watch", daemon=True)
        self._thread.start()

    def ranks_started(self, attempt: int, ranks: Mapping[int, StartedRank], world_size: int) -> None:
        """A new generation of ranks; what was known of an earlier one becomes an incident if it failed."""
        with self._lock:
            if self._started:
                self._close_attempt()
            self.attempt = attempt
            self._started = dict(ranks)
            self._world_size = world_size
            self.folder.attempt(attempt)

    def join(self, store: Store, node: int, nodes: int) -> None:
        """Meet the watchers of the other nodes in the launchers' rendezvous store (call after `ranks_started`)."""
        with self._lock:
            if self._meeting is not None:
                self._meeting.close()
            self._meeting = Meeting(store, node, nodes, self.attempt, self._for_others) if nodes > 1 else None

    def _for_others(self) -> Snapshot:
        with self._lock:
            return self._snapshot("stall", stacks=True, dumps=True, limit=ASK_LIMIT)

    def command_started(self, pid: int) -> None:
        """The `--` form: the ranks, somewhere below this process, are found by their records."""
        with self._lock:
            self.folder.attempt(0)

    def log_paths(self, rank: int, paths: Sequence[Path]) -> None:
        with self._lock:
            self._logs[rank] = tuple(paths)

    def process_exited(
        self, pid: int, *, code: int | None, signal: int | None, killed_by_launcher: bool = False
    ) -> None:
        with self._lock:
            if pid in self._exits and self._exits[pid].time is not None:
                return
            oom = False
            if signal == 9 and not killed_by_launcher:
                oom = processes.oom_kills() > self._oom_before or bool(processes.kernel_kill_lines({pid}))
            self._exits[pid] = Exit(
                code=code, signal=signal, time=time.time(), killed_by_launcher=killed_by_launcher, oom_killed=oom
            )
        self._wake.set()

    def launcher_failed(self, error: BaseException) -> None:
        """The launcher itself failed before, or beside, the ranks (a rendezvous, a port in use)."""
        with self._lock:
            self._launcher_error = ExceptionNote(type=type(error).__name__, message=str(error)[:4000], time=time.time())

    # --- snapshots ---------------------------------------------------------------------------------------------

    def collect(self, reason: Reason, budget_s: float = 0.2) -> Snapshot:
        """All evidence now, within about `budget_s` seconds. At the first failure ("exit") it is kept: the ranks
        that still live are about to be ended."""
        with self._lock:
            self._look()
            snapshot = self._snapshot(reason, stacks=True, dumps=reason == "interrupt", limit=budget_s * 0.4)
            self._being_ended |= reason == "interrupt"
            if reason in ("exit", "interrupt") and self._at_failure is None:
                self._at_failure = snapshot
            return snapshot

    def _snapshot(self, reason: Reason, *, stacks: bool, dumps: bool, limit: float) -> Snapshot:
        members = self._members()
        alive = [look for look, _ in members if look is not None and not look.gone]
        found_dumps = ask_dumps(self.records, [look.asked for look in alive if may_ask(look)], limit) if dumps else {}
        found_stacks: Stacks = {}
        stats: dict[int, processes.Stat] = {}
        if stacks:
            stats = processes.all_stats()
            asked = [
                look.asked for look in alive if may_signal(look) and (look.quiet >= INTERVAL / 2 or reason != "stall")
            ]
            found_stacks = ask_stacks(self.records, asked + _children(alive, stats), limit)
            found_stacks = {**found_stacks, **ask_py_spy(self._without_a_voice(members, found_stacks), limit)}
        dead = [look for look, _ in members if look is not None and look.gone]
        found_stacks = {
            **found_stacks,
            **{look.asked: (stack,) for look in dead if (stack := stack_of_the_dead(self.records, look.asked))},
        }
        found = [self._process(look, started, found_stacks, found_dumps) for look, started in members]
        if stacks:
            found = [with_children(process, stats, found_stacks) for process in found]
        ports = {
            port
            for process in found
            if process.initialized in ("no", "entered")
            for port in (port_of(process.master), port_of(process.launcher_master))
            if port
        }
        world_size = self._world_size or max((process.world_size or 0 for process in found), default=0) or None
        return Snapshot(
            taken_at=time.time(),
            reason=reason,
            command=self.command,
            run_dir=os.fsencode(self.folder.path).decode("utf-8", "replace"),
            started_at=self.started_at,
            world_size=world_size,
            attempt=self.attempt,
            quiet_for=self._quiet.quiet_for,
            stall_after=self._quiet.limit(members_looks(members)),
            stalled=self._stalled(),
            processes=tuple(found),
            sources=sources_of(found),
            ports=port_holders(ports),
            launcher_error=self._launcher_error,
            last_lines=tuple(self._kernel_lines()),
            notes=tuple(self.folder.troubles),
        )

    def _without_a_voice(
        self, members: Sequence[tuple[Look | None, StartedRank | None]], answered: Stacks
    ) -> list[Asked]:
        """Processes that cannot write their own stack: stopped ones, and those that are not recorded."""
        found = [
            look.asked
            for look, _ in members
            if look is not None and not look.gone and look.asked not in answered and look.stopped_for
        ]
        for look, started in members:
            stat = processes.read_stat(started.pid) if look is None and started is not None else None
            if stat is not None and started is not None and started.pid not in self._exits:
                found.append((started.pid, stat.start))
        return found

    def _process(
        self, look: Look | None, started: StartedRank | None, stacks: Stacks, dumps: Mapping[Asked, Dump]
    ) -> Process:
        rank = started.rank if started is not None else (look.number("launcher_rank") if look is not None else None)
        logs = self._logs.get(rank, ()) if rank is not None else ()
        if look is not None:
            exits = self._exits
            if look.gone and look.pid not in exits and self._being_ended:
                exits = {**exits, look.pid: Exit(killed_by_launcher=True)}
            if started is not None and started.pid != look.pid and look.gone and started.pid in exits:
                exits = {**exits, look.pid: exits[started.pid]}
            return process_of(look, stacks, dumps, exits, logs, rank)
        assert started is not None
        stat = processes.read_stat(started.pid)
        return unrecorded(
            stacks.get((started.pid, stat.start), ()) if stat is not None else (),
            started.pid,
            started.rank,
            started.local_rank,
            self.attempt,
            self._world_size,
            self._exits.get(started.pid),
            logs,
            self._unseen[started.pid].idle if started.pid in self._unseen else 0.0,
        )

    def _kernel_lines(self) -> list[str]:
        killed = {pid for pid, exit_ in self._exits.items() if exit_.signal == 9 and not exit_.killed_by_launcher}
        return processes.kernel_kill_lines(killed) if killed else []

    def _members(self) -> list[tuple[Look | None, StartedRank | None]]:
        """The processes that are ranks: one for each that the launcher started, and any other that called
        init_process_group. A provisional one that has a rank below it (a spawn parent) is none."""
        looks = [look for look in self._looks.values() if look.pid not in self._old_pids]
        ranks = [look for look in looks if look.identity("initialized") in ("entered", "done", "destroyed")]
        parents = {look.identity("ancestor") for look in ranks if look.identity("ancestor") != _name(look)}
        members: list[tuple[Look | None, StartedRank | None]] = []
        taken: set[int] = set()
        for rank in sorted(self._started):
            started = self._started[rank]
            look = self._look_of(started, looks)
            if look is not None and _name(look) in parents:
                taken.add(look.pid)
                continue
            if look is not None:
                taken.add(look.pid)
            members.append((look, started))
        for look in self._of_this_job(looks, [look for look, _ in members if look is not None]):
            provisional = look not in ranks
            if look.pid in taken or (provisional and (self._started or _name(look) in parents or look.gone)):
                continue
            members.append((look, None))
        return members

    def _of_this_job(self, looks: Sequence[Look], started: Sequence[Look]) -> list[Look]:
        """A script may run several launchers, one after the other or inside a rank: each has a meeting point of its
        own. Those of the ranks that we started count, else of the newest process that lives."""
        known = started or sorted((look for look in looks if not look.gone), key=lambda look: look.start)[-1:]
        if not known:
            return list(looks)
        masters = {look.identity("launcher_master") for look in known}
        return [look for look in looks if look.identity("launcher_master") in masters]

    def _look_of(self, started: StartedRank, looks: Sequence[Look]) -> Look | None:
        """The record of a started rank: its own process, else one of its session (a shell around Python)."""
        own = [look for look in looks if look.pid == started.pid]
        if own:
            return own[0]
        below = [look for look in looks if look.stat is not None and look.stat.session == started.pid]
        below += [look for look in looks if look.gone and look.number("launcher_rank") == started.rank]
        ranked = sorted(below, key=lambda look: (look.identity("initialized") == "no", look.gone, -look.seen_at))
        return ranked[0] if ranked else None

    # --- the loop ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(INTERVAL)
            self._wake.clear()
            if self._stopping:
                return
            try:
                with self._lock:
                    self._turn()
            except Exception as error:  # the job must go on, whatever the watcher meets
                note = f"the watcher failed once: {type(error).__name__}: {error}"
                if note not in self.folder.troubles:
                    self.folder.troubles.append(note)
                if os.environ.get("RANKCALL_DEBUG"):
                    raise

    def _turn(self) -> None:
        self._look()
        if self._active is not None:
            self._withdraw_if_moved()
        looks = [look for look, _ in self._members() if look is not None]
        self._say_who_is_missing()
        if not self._worth_judging(looks):
            return
        self._judge()

    def _look(self) -> None:
        """One look at every process; awake time is the time between looks, at most two intervals."""
        now = time.monotonic()
        elapsed = min(now - self._last_look, 2 * INTERVAL) if self._last_look is not None else 0.0
        self._last_look = now
        self._find_records()
        for look in self._looks.values():
            if not look.gone:
                look.look(elapsed)
        members = self._members()
        self._look_at_unseen(elapsed, members)
        self._quiet.turn(elapsed, members_looks(members))
        standstill = tuple(sorted(look.fingerprint() for look in self._looks.values() if look.quiet >= INTERVAL))
        if standstill == self._standstill:
            self._standing_for += elapsed
        else:
            self._standstill, self._standing_for, self._judged_at = standstill, 0.0, 0.0

    def _look_at_unseen(self, elapsed: float, members: Sequence[tuple[Look | None, StartedRank | None]]) -> None:
        """Of ranks that are not recorded, /proc tells at least whether they do anything."""
        pids = {started.pid for look, started in members if look is None and started is not None}
        for pid in pids - self._exits.keys():
            self._unseen.setdefault(pid, Unseen(pid)).look(elapsed)
        for pid in self._unseen.keys() - pids:
            del self._unseen[pid]

    def _unseen_stalled(self, looks: Sequence[Look]) -> bool:
        """Ranks without a record have done nothing for longer than the limit, and nobody else moves either."""
        alive = [unseen for pid, unseen in self._unseen.items() if pid not in self._exits]
        limit = self._quiet.limit(looks)
        idle = bool(alive) and all(unseen.idle >= limit for unseen in alive)
        return idle and all(look.gone or look.quiet >= limit for look in looks)

    def _stalled(self) -> bool:
        looks = members_looks(self._members())
        return self._quiet.stalled(looks) or self._unseen_stalled(looks)

    def _find_records(self) -> None:
        try:
            names = [entry.name for entry in os.scandir(self.records) if entry.name.endswith(".rec")]
        except OSError:
            return
        for name in names:
            if name in self._looks or name in self._bad_records:
                continue
            try:
                self._looks[name] = Look(self.records / name)
            except ValueError:
                # It may be in the making: the magic is written last. Try again unless it is old.
                with contextlib.suppress(OSError):
                    if time.time() - (self.records / name).stat().st_mtime > 5:
                        self._bad_records.add(name)
            except OSError:
                self._bad_records.add(name)

    def _worth_judging(self, looks: Sequence[Look]) -> bool:
        """Whether enough stands still, and for long enough since the last judgement, to look closely."""
        if self._unseen_stalled(looks) and not self._is_ending(looks):
            again = self._active is None and time.monotonic() - self._judged_unseen > UNSEEN_EVERY
            if again:
                self._judged_unseen = time.monotonic()
            return again
        still = [look for look in looks if look.quiet >= STABLE or look.gone]
        if not looks or not still:
            return False
        moving = len(looks) - len(still)
        waiting = [look for look in still if not look.gone and look.main is not None and look.main.wait != "none"]
        if moving and len(waiting) < 2 and not any(look.stopped_for >= 2.0 for look in still):
            return False
        if all(look.gone for look in looks) or self._is_ending(looks):
            return False
        age = self._standing_for
        due = [mark for mark in (*JUDGE_AT, *self._quiet.marks(looks)) if self._judged_at < mark <= age]
        if not due:
            return False
        self._judged_at = age
        return True

    def _is_ending(self, looks: Sequence[Look]) -> bool:
        """A rank has failed or is on its way out, and the launcher ends the job by itself in a moment: that is a
        crash, judged at its end, unless the way out takes too long."""
        now = time.time()
        for look in looks:
            main = look.main
            if not look.gone and main is not None and main.phase == "exit" and now - main.time < EXIT_GRACE:
                return True
        failed = [exit_ for exit_ in self._exits.values() if exit_.code != 0 or exit_.signal]
        return any(exit_.time is not None and now - exit_.time < EXIT_GRACE for exit_ in failed)

    def _judge(self) -> None:
        """Look without stacks first, which costs the ranks next to nothing; with them before anything is said, and
        where time is up: then a stack may be all there is to tell."""
        others: list[Snapshot] = []
        if self._meeting is not None:
            self._meeting.ask()
            others = self._meeting.others()
        stalled = self._stalled()
        if stalled:
            self._say_who_is_unrecorded()
        snapshot = merged(self._snapshot("stall", stacks=stalled, dumps=True, limit=ASK_LIMIT), others)
        report = diagnose(snapshot)
        if not _is_to_be_said(report.verdict):
            if stalled and report.verdict is None:
                self._say_unknown(report)
            return
        assert report.verdict is not None
        if self._active is not None and not _says_more(report.verdict, self._active[0], snapshot.stalled):
            self._stop_if_due(snapshot)
            return
        if not stalled:
            snapshot = merged(self._snapshot("stall", stacks=True, dumps=True, limit=ASK_LIMIT), others)
            report = diagnose(snapshot)
            if not _is_to_be_said(report.verdict):
                return
        self._raise_incident(report, snapshot)
        self._stop_if_due(snapshot)

    def _say_unknown(self, report: Report) -> None:
        """Everybody waits, for longer than the limit, and nothing tells for whom: say what is known, once."""
        known = report.data.get("unknown")
        alive = [row for row in report.ranks if row.state not in ("finished", "crashed")]
        if not isinstance(known, str) or not known or any(row.state != "waiting" for row in alive):
            return
        if self._unknown_said != self._standstill and self._on_status is not None:
            self._unknown_said = self._standstill
            self._on_status(f"no progress for {self._quiet.quiet_for:.0f} s. {known}")
        if self._on_stop is not None and not self._stop_asked:
            self._stop_asked = self._being_ended = True
            self._on_stop(self._complete(report))

    def _raise_incident(self, report: Report, snapshot: Snapshot) -> None:
        assert report.verdict is not None
        verdict = report.verdict
        if self._active is not None:
            self._close_incident(time.time())
        if verdict.layer == "launch":
            self._processes_seen = processes.below(os.getpid())
        self.incidents.append(Incident(self.attempt, snapshot.taken_at, verdict))
        marks = {look.pid: _progress_mark(look) for look, _ in self._members() if look is not None}
        self._active = (verdict, snapshot, marks)
        self._write(report, snapshot)
        self._on_report(self._complete(report))

    def _stop_if_due(self, snapshot: Snapshot) -> None:
        """`--on-hang stop`: at once for what is proven, after the limit for what is only suspected."""
        if self._active is None or self._on_stop is None or self._stop_asked:
            return
        verdict = self._active[0]
        if verdict.pitfall in SLOW_NOT_STUCK:
            return
        if verdict.proven or snapshot.stalled:
            self._stop_asked = self._being_ended = True
            self._on_stop(self._complete(diagnose(self._active[1])))

    def _withdraw_if_moved(self) -> None:
        """A verdict is withdrawn when the ranks it speaks of do something new; an exception of a wait that timed
        out is no progress."""
        if self._active is None or self._stop_asked:
            return
        verdict, _, marks = self._active
        involved = set(verdict.culprits) | set(verdict.waiting)
        for look, started in self._members():
            rank = started.rank if started is not None else None
            claimed = look.number("claimed_rank") if look is not None else None
            if look is None or look.gone or not ({rank, claimed} & involved):
                continue
            if _progress_mark(look) > marks.get(look.pid, 1 << 62) and look.exit_note() is None:
                self._close_incident(time.time())
                self._active = None
                self._judged_at = self._standing_for = 0.0
                self._on_report(self._complete(Report(verb="run")))
                return

    def _close_incident(self, when: float) -> None:
        self.incidents[-1] = msgspec.structs.replace(self.incidents[-1], withdrawn_at=when)

    def _say_who_is_missing(self) -> None:
        """Once, ten seconds after the start: who has not come yet while others wait for them."""
        if self._status_said or self._on_status is None or time.time() - self.started_at < STATUS_AFTER:
            return
        self._status_said = True
        members = self._members()
        self._say_who_is_unrecorded()
        waiting = [m for m in members if m[0] is not None and m[0].identity("initialized") == "entered"]
        missing = [m for m in members if m[0] is None or m[0].identity("initialized") == "no"]
        if waiting and missing:
            names = ", ".join(_label(look, started) for look, started in missing[:8])
            more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
            who = "1 rank waits" if len(waiting) == 1 else f"{len(waiting)} ranks wait"
            self._on_status(f"{who} in init_process_group; not there yet: {names}{more}")

    def _say_who_is_unrecorded(self) -> None:
        """Once, when the ranks should all have records, or something is to be said of one that has none."""
        if self._unrecorded_said or not self._unseen or self._on_status is None:
            return
        self._unrecorded_said = True
        ranks = sorted(started.rank for started in self._started.values() if started.pid in self._unseen)
        names = ", ".join(str(rank) for rank in ranks[:8]) + (", …" if len(ranks) > 8 else "")
        self._on_status(
            f"not recorded: {'rank' if len(ranks) == 1 else 'ranks'} {names}. Python started with -I, -E or -S ignores "
            "PYTHONPATH; only stacks and /proc can be looked at"
        )

    # --- the end -----------------------------------------------------------------------------------------------

    def _close_attempt(self) -> None:
        """Before a restart: judge what failed, keep it as an incident, begin anew."""
        self._look()
        final = self._final_snapshot("crashed")
        self._save_records()
        report = diagnose(final)
        if report.verdict is not None and (self._active is None or self.incidents[-1].withdrawn_at):
            self.incidents.append(Incident(self.attempt, final.taken_at, report.verdict))
        self._old_pids |= {look.pid for look in self._looks.values()}
        self._active, self._at_failure = None, None
        self._exits, self._logs = {}, {}
        self._quiet.restart()

    def _final_snapshot(self, outcome: Outcome, others: Sequence[Snapshot] = ()) -> Snapshot:
        """The evidence from the moment of trouble, completed by how each process ended."""
        end = self._snapshot("end" if outcome == "completed" else "exit", stacks=False, dumps=False, limit=0.0)
        end = merged(end, others)
        earlier = self._active[1] if self._active is not None else self._at_failure
        if outcome == "completed" or earlier is None:
            return msgspec.structs.replace(end, outcome=outcome)
        before = {(process.host, process.pid): process for process in earlier.processes}
        ended = [_joined(before.get((process.host, process.pid)), process) for process in end.processes]
        return msgspec.structs.replace(
            earlier,
            processes=tuple(ended),
            outcome=outcome,
            sources={**end.sources, **earlier.sources},
            last_lines=end.last_lines,
            launcher_error=self._launcher_error,
            notes=end.notes,
        )

    def finish(self, outcome: Outcome, exit_code: int) -> Report:
        """Stop watching, write snapshot.json and report.json, give the memory back. Returns the report."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        # Not under the lock: the other nodes ask us at the same time.
        others = self._meeting.wait_for_others(1.5) if self._meeting and outcome != "completed" else []
        with self._lock:
            self._look()
            if outcome == "stopped" and self._active is not None:
                outcome = "hung"
            snapshot = self._final_snapshot(outcome, others)
            self._save_records()
            report = diagnose(snapshot)
            if report.verdict is None and self._active is not None and outcome != "completed":
                report = msgspec.structs.replace(report, verdict=self._active[0])
            if outcome == "completed":
                now = time.time()
                self.incidents = [
                    incident if incident.withdrawn_at else msgspec.structs.replace(incident, withdrawn_at=now)
                    for incident in self.incidents
                ]
            report = msgspec.structs.replace(report, data={**report.data, "exit_code": exit_code})
            report = self._complete(report, outcome)
            self._write(report, snapshot)
            if self._meeting is not None:
                self._meeting.close()
            for look in self._looks.values():
                look.record.close()
            shutil.rmtree(self.records, ignore_errors=True)
            return report

    def _complete(self, report: Report, outcome: Outcome | None = None) -> Report:
        verdict = report.verdict
        if verdict is not None and self._active is not None and verdict.pitfall == self._active[0].pitfall:
            # The moment of the first decision stands: the final snapshot is judged later.
            verdict = msgspec.structs.replace(verdict, detected_after_s=self._active[0].detected_after_s)
        data = {**report.data, "processes": self._processes_seen} if self._processes_seen else report.data
        return msgspec.structs.replace(
            report,
            verb="run",
            verdict=verdict,
            outcome=outcome or report.outcome,
            incidents=tuple(self.incidents),
            data=data,
        )

    def _write(self, report: Report, snapshot: Snapshot) -> None:
        self.folder.write_snapshot(snapshot_to_json(snapshot))
        self.folder.write_report(report_to_json(self._complete(report, report.outcome)))

    def _save_records(self) -> None:
        """Copy the records and stacks into the run folder; a rank never writes there itself."""
        target = self.folder.attempt(self.attempt)
        for look in self._looks.values():
            if look.pid in self._old_pids:
                continue
            with contextlib.suppress(OSError):
                shutil.copyfile(look.record.path, target / "records" / look.record.path.name)
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.records):
                if entry.name.endswith(".stack") and entry.stat().st_size:
                    shutil.copyfile(entry.path, target / "stacks" / entry.name)
                elif entry.name.endswith(".fr.json"):
                    shutil.copyfile(entry.path, target / "dumps" / entry.name)


def members_looks(members: Sequence[tuple[Look | None, StartedRank | None]]) -> list[Look]:
    return [look for look, _ in members if look is not None]


def _name(look: Look) -> str:
    return f"{look.pid}-{look.start}"


def _label(look: Look | None, started: StartedRank | None) -> str:
    rank = started.rank if started is not None else (look.number("launcher_rank") if look is not None else None)
    pid = look.pid if look is not None else (started.pid if started is not None else 0)
    return f"rank {rank} (pid {pid})" if rank is not None else f"pid {pid}"


def _children(looks: Sequence[Look], stats: dict[int, processes.Stat]) -> list[Asked]:
    """The Python children to ask for stacks: only of ranks that wait for their data or for a child."""
    asked: list[Asked] = []
    for look in looks:
        main = look.main
        if main is not None and main.wait == "none" and main.phase in ("data", "idle", "init"):
            asked += [(child, stats[child].start) for child in processes.descendants(look.pid, stats)[:32]]
    return asked


def _progress_mark(look: Look) -> int:
    """Grows with what a rank achieves: its collectives, forwards, backwards, steps. Exceptions do not count."""
    return look.record.counter("events") - look.record.counter("exceptions")


def _is_to_be_said(verdict: Verdict | None) -> bool:
    """A rank that is late but moves is nobody's hang."""
    return verdict is not None and (verdict.proven or verdict.pitfall != "straggler")


def _says_more(new: Verdict, old: Verdict, stalled: bool) -> bool:
    """Whether a new verdict should replace the one that stands."""
    if new.pitfall == old.pitfall and new.culprits == old.culprits:
        return new.proven and not old.proven
    return new.proven or (not old.proven and stalled and new.confidence > old.confidence)


def _joined(before: Process | None, after: Process) -> Process:
    """A process as it was at the moment of trouble, with how it ended."""
    if before is None:
        return after
    if after.threads and after.threads[0].stack and before.state in ("gone", "zombie"):
        return after  # it was dead already, and has left the stack of its crash
    return msgspec.structs.replace(
        after,
        state=before.state,
        busy=before.busy,
        blocked_in=before.blocked_in,
        threads=before.threads,
        groups=before.groups,
        children=before.children,
        last_change=before.last_change,
    )
