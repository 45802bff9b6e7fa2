"""Looks at one recorded process again and again: what changed since, for how long it has not, how busy it is."""

from __future__ import annotations

import time
from pathlib import Path

from rankcall.diagnose.readers.records import Record, SlotView, number
from rankcall.snapshot import ExitNote
from rankcall.watch.processes import TICKS, Stat, read_stat, wanted_time

STABLE = 0.5  # seconds; a record that has not changed for so long, over two looks, stands still


class Look:
    """One process with a record. `look` is called at every turn; all else answers from the last one.

    Quiet times are counted in the watcher's own awake looks, never in wall-clock time: a suspended machine raises
    no alarm.
    """

    def __init__(self, path: Path) -> None:
        self.record = Record(path)
        self.pid = self.record.pid
        self.start = self.record.start
        self.seen_at = time.time()
        self.slots: list[SlotView] = []
        self.stat: Stat | None = None
        self.quiet: float = 0.0  # since the main thread's record changed
        self.slot_quiet: dict[int, float] = {}
        self.stopped_for: float = 0.0
        self.changed_at = time.time()  # when the main thread's record last changed, by its own clock
        self.busy: float | None = None
        self.main_busy: float | None = None
        self.gone = False
        self._changes: dict[int, int] = {}
        self._cpu: tuple[float, int] | None = None
        self._main_cpu: tuple[float, int] | None = None

    @property
    def asked(self) -> tuple[int, int]:
        return self.pid, self.start

    @property
    def main(self) -> SlotView | None:
        """The main thread's slot; else the first one."""
        return next((slot for slot in self.slots if slot.main), self.slots[0] if self.slots else None)

    def identity(self, name: str) -> object:
        return self.record.identity().get(name)

    def number(self, name: str) -> int | None:
        return number(self.identity(name))

    def look(self, elapsed: float) -> None:
        """Look once; `elapsed` is the awake time since the last look."""
        self._look_at_process(elapsed)
        self.slots = self.record.slots()
        main = self.main
        changed = False
        for place, slot in enumerate(self.slots):
            if self._changes.get(place) == slot.changes:
                self.slot_quiet[place] = self.slot_quiet.get(place, 0.0) + elapsed
            else:
                self._changes[place] = slot.changes
                self.slot_quiet[place] = 0.0
                if slot is main:
                    changed = True
                    self.changed_at = slot.time
        self.quiet = 0.0 if changed else self.quiet + elapsed

    def _look_at_process(self, elapsed: float) -> None:
        stat = read_stat(self.pid)
        if stat is None or stat.start != self.start or stat.state in ("gone", "zombie"):
            self.gone = True
            self.stat = stat if stat is not None and stat.start == self.start else None
            return
        self.stat = stat
        self.stopped_for = self.stopped_for + elapsed if stat.state == "stopped" else 0.0
        now = time.monotonic()
        self.busy, self._cpu = _rate(self._cpu, now, stat.cpu, TICKS)
        main = self.main
        if main is not None:
            wanted = wanted_time(self.pid, main.thread)
            if wanted is not None:
                self.main_busy, self._main_cpu = _rate(self._main_cpu, now, wanted, 1e9)
            elif (thread := read_stat(self.pid, main.thread)) is not None:
                self.main_busy, self._main_cpu = _rate(self._main_cpu, now, thread.cpu, TICKS)

    def exit_note(self) -> ExitNote | None:
        return self.record.exit_note()

    def fingerprint(self) -> tuple[object, ...]:
        """Changes exactly when the process's own record, its state or its life does."""
        main = self.main
        return (
            self.pid,
            main.changes if main is not None else -1,
            self.stat.state == "stopped" if self.stat is not None else None,
            self.gone,
        )


class Unseen:
    """A rank without a record: all that can be told of it is for how long it has used no CPU time worth the name."""

    IDLE = 0.02  # of a core; threads of gloo and Python's own waits wake up now and then

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.idle = 0.0
        self._cpu: tuple[float, int] | None = None

    def look(self, elapsed: float) -> None:
        stat = read_stat(self.pid)
        if stat is None:
            return
        busy, self._cpu = _rate(self._cpu, time.monotonic(), stat.cpu, TICKS)
        if busy is not None:
            self.idle = self.idle + elapsed if busy < self.IDLE else 0.0


def may_ask(look: Look) -> bool:
    """Ask a flight recorder only of a rank that stands still and does not compute: it costs it up to 22 ms. Not on its
    way out: a thread that wakes while Python shuts down ends the process."""
    main = look.main
    return look.quiet >= STABLE and (look.main_busy or 0.0) < 0.5 and (main is None or main.phase != "exit")


def may_signal(look: Look) -> bool:
    """Whether a stack signal is harmless. Not while the rank is in init_process_group or new_group: c10d's store
    sleeps there in calls that fail when a signal interrupts them, and the record says all there is to say."""
    main = look.main
    return main is None or main.wait not in ("init", "new-group")


def _rate(
    before: tuple[float, int] | None, now: float, amount: int, per_second: float
) -> tuple[float | None, tuple[float, int]]:
    """Cores wanted since the look before; looks closer than a tenth of a second say nothing."""
    if before is None:
        return None, (now, amount)
    elapsed = now - before[0]
    if elapsed < 0.1:
        return None, before
    return (amount - before[1]) / per_second / elapsed, (now, amount)
