"""The recorder: what hooks call. Turns "this thread enters that" into stores into the record.

One per process (`recorder`), off until the process is, or may become, a rank. Every public method may be called
from any thread; none raises anything but what `fault` swallows at the hook.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType

from rankcall.record import layout
from rankcall.record.writer import Writer, now

_PHASE = layout.PHASE
_WAIT = layout.WAIT
_KIND = layout.KIND
_IDLE = _PHASE["idle"]
_NO_WAIT = _WAIT["none"]
_SLOT_PACK = layout.SLOT.pack_into
_EVENT_PACK = layout.EVENT.pack_into
_COUNT_PACK = layout.COUNTER.pack_into
_EVENTS_AT = layout.COUNTER_INDEX["events"]
_SITE_FRAMES = 48  # how far up the stack the user's own line is looked for


class Slot:
    """What one thread is doing. `at` is its slot's byte position, 0 before the first change is written."""

    __slots__ = (
        "at", "changes", "inside", "main", "operations", "outer", "outer_site", "passing", "phase", "phase_since",
        "phase_site", "seen_exception", "step_before", "thread",
    )  # fmt: skip

    def __init__(self) -> None:
        self.at = 0
        self.thread = threading.get_native_id()
        self.main = int(threading.current_thread() is threading.main_thread())
        self.phase = _IDLE
        self.phase_since = now()
        self.phase_site = 0
        self.changes = 0
        self.operations = 0
        self.inside = 0  # depth of recorded blocking calls
        self.outer = 0  # name of the object collective around the tensor ones
        self.outer_site = 0
        self.passing: dict[str, object] | None = None  # a description: the object would keep frames and tensors alive
        self.seen_exception = 0
        self.step_before: tuple[int, int, int] | None = None


class _Threads(threading.local):
    slot: Slot


class Recorder:
    """State of the recording in this process."""

    def __init__(self) -> None:
        self.on = False
        self.writer: Writer | None = None
        self.threads = _Threads()
        self.at_start: list[Callable[[], None]] = []  # what other modules forget when a record begins
        self.loop_step = 0
        self.counts = dict.fromkeys(layout.COUNTERS, 0)
        self.identity: dict[str, object] = {}
        self.handled: list[dict[str, object]] = []
        self.torch_root = "\0"
        self._kinds: dict[str, int] = {}
        self._sites: dict[tuple[str, int], int] = {}
        self._fault_log: set[str] = set()

    @property
    def slot(self) -> Slot:
        """This thread's own. A plain object behind one look-up: attributes of a thread-local cost ten times more."""
        try:
            return self.threads.slot
        except AttributeError:
            slot = self.threads.slot = Slot()
            return slot

    # --- life --------------------------------------------------------------------------------------------------

    def start(self, writer: Writer) -> None:
        """Begin to record into `writer`."""
        self.writer = writer
        # A forked rank inherits what its parent had counted, and numbers of names in its parent's record.
        self.loop_step = 0
        self.counts = dict.fromkeys(layout.COUNTERS, 0)
        self.identity, self.handled = {}, []
        self._sites.clear()
        self._fault_log.clear()
        self.threads = _Threads()
        for forget in self.at_start:
            forget()
        self.on = True
        self.change(_IDLE, 0)

    def stop(self) -> None:
        """Record no more in this process (a forked child, or the record is broken)."""
        self.on = False
        self.writer = None

    def fault(self, where: str) -> None:
        """Called in an `except` of a hook: count, note once. Raises only what is not ours: the exception of a signal
        handler of the program's that ran while the hook did (a time-out by SIGALRM, say)."""
        error = sys.exc_info()[1]
        if error is not None and self._is_the_programs(error):
            raise error
        try:
            text = f"{where}: {type(error).__name__}: {error}"
            self.counts["faults"] += 1
            if self.writer is not None:
                self.writer.set_counter("faults", self.counts["faults"])
                if where not in self._fault_log and len(self._fault_log) < 8:
                    self._fault_log.add(where)
                    faults = self.identity.setdefault("faults", [])
                    if isinstance(faults, list):
                        faults.append(text[:300])
                    self.writer.write_blob("identity", self.identity)
        except Exception:  # the last line of defence: nothing here may reach the job
            self.on = False

    def _is_the_programs(self, error: BaseException) -> bool:
        """Whether the exception was raised in a frame of the user's own, below the hook that met it."""
        trace = error.__traceback__
        last = None
        while trace is not None:
            last = trace.tb_frame.f_code.co_filename
            trace = trace.tb_next
        return last is not None and not last.startswith("<frozen") and self._file_kind(last) == 2

    def identify(self, **facts: object) -> None:
        """Add facts to who this process is."""
        self.identity.update(facts)
        if self.writer is not None:
            self.writer.write_blob("identity", self.identity)

    # --- the user's own line -----------------------------------------------------------------------------------

    def site(self, depth: int) -> int:
        """The number of the call site: the nearest frame of the user's own code, counted from `depth` frames up,
        else the nearest outside torch. 0 if there is none."""
        frame: FrameType | None = sys._getframe(depth)
        assert frame is not None
        code = frame.f_code
        if self._kinds.get(code.co_filename) == 2:  # nearly always: the caller itself is the user's
            number = self._sites.get((code.co_filename, frame.f_lineno))
            return number if number is not None else self._intern_site(frame)
        fallback: FrameType | None = None
        kinds = self._kinds
        for _ in range(_SITE_FRAMES):
            if frame is None:
                break
            name = frame.f_code.co_filename
            kind = kinds.get(name)
            if kind is None:
                kind = kinds[name] = self._file_kind(name)
            if kind == 2:
                return self._intern_site(frame)
            if kind == 1 and fallback is None:
                fallback = frame
            frame = frame.f_back
        return self._intern_site(fallback) if fallback is not None else 0

    def _intern_site(self, frame: FrameType) -> int:
        key = (frame.f_code.co_filename, frame.f_lineno)
        number = self._sites.get(key)
        if number is None and self.writer is not None:
            text = f"{key[0]}\0{key[1]}\0{frame.f_code.co_name}"
            number = self._sites[key] = self.writer.intern(key, text, layout.TAG_SITE)
        return number or 0

    def _file_kind(self, name: str) -> int:
        """0: torch's, Python's or ours; 1: an installed library's; 2: the user's own."""
        if name.startswith(_DEMO):
            return 2
        if name.startswith(("<frozen", self.torch_root, _OURS)):
            return 0
        if "/site-packages/" in name or "/dist-packages/" in name:
            return 1
        return 0 if name.startswith(_STDLIB) else 2

    def name(self, text: str) -> int:
        """The number of a name (an operation, a dtype)."""
        return self.writer.intern(text, text, layout.TAG_NAME) if self.writer is not None else 0

    # --- slots -------------------------------------------------------------------------------------------------

    def change(self, phase: int, site: int, wait: int = _NO_WAIT, event: int = -1) -> None:
        """Store what this thread does from now on."""
        writer = self.writer
        if writer is None:
            return
        slot = self.slot
        time = now()
        if not slot.at:
            slot.at = writer.take_slot()
        if phase != slot.phase or site != slot.phase_site:
            slot.phase = phase
            slot.phase_since = time
            slot.phase_site = site
        slot.changes = changes = slot.changes + 1
        _SLOT_PACK(
            writer.map, slot.at, changes, slot.thread, phase, wait, slot.main, slot.phase_since, time, site,
            self.loop_step, event, slot.operations, time, changes,
        )  # fmt: skip

    def beat(self) -> None:
        """A sign of life where there is no event: a program that imports is not stuck, however long it takes."""
        if self.on:
            try:
                slot = self.slot
                if not slot.inside:
                    self.change(slot.phase, slot.phase_site)
            except Exception:
                self.fault("import")

    # --- events ------------------------------------------------------------------------------------------------

    def event(
        self,
        kind: int,
        site: int,
        *,
        compared: bool = False,
        op: int = 0,
        dtype: int = 0,
        reduce_op: int = 0,
        group: int = -1,
        seq: int = -1,
        numel: int = -1,
        root: int = -1,
        peer: int = -1,
        tag: int = -1,
        nth: int = -1,
    ) -> int:
        """Append to the ring; returns the event's number, -1 when off."""
        writer = self.writer
        if writer is None:
            return -1
        index = writer.next_event()
        place = writer.next_place() if compared else -1
        slot = self.slot
        outer = slot.outer
        _EVENT_PACK(
            writer.map, layout.RING_AT + (index & (layout.RING_EVENTS - 1)) * layout.EVENT_SIZE,
            index, now(), kind, op, outer, dtype, reduce_op, 0, group, seq, numel, root, peer, tag, nth,
            self.loop_step, site, place, index,
        )  # fmt: skip
        _COUNT_PACK(writer.map, _EVENTS_AT, index + 1)
        if slot.passing is not None:
            self.settle_exception()
        return index

    def count(self, name: str) -> None:
        """Add one to a counter."""
        value = self.counts[name] = self.counts[name] + 1
        if self.writer is not None:
            _COUNT_PACK(self.writer.map, layout.COUNTER_INDEX[name], value)

    def set_loop_step(self, value: int) -> None:
        self.loop_step = value
        if self.writer is not None:
            self.writer.set_counter("loop_step", value)

    # --- exceptions --------------------------------------------------------------------------------------------

    def exception_passes(self, error: BaseException, site: int) -> None:
        """An exception leaves a recorded call. Whether the program handles it is known at the next event."""
        slot = self.slot
        if id(error) == slot.seen_exception:
            return
        slot.seen_exception = id(error)
        if isinstance(error, (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration)):
            return
        self.event(_KIND["exception"], site, op=self.name(type(error).__name__[:80]))
        self.count("exceptions")
        slot.passing = self._described(error)

    def exception_handled(self, error: BaseException, site: int) -> None:
        """A recorded call begins while `error` is being handled (inside an `except` or `finally`)."""
        slot = self.slot
        if id(error) == slot.seen_exception and slot.passing is None:
            return
        if isinstance(error, (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration)):
            return
        if id(error) != slot.seen_exception:
            slot.seen_exception = id(error)
            self.event(_KIND["exception"], site, op=self.name(type(error).__name__[:80]))
            self.count("exceptions")
        slot.passing = None
        self._note_handled(self._described(error))

    def settle_exception(self) -> None:
        """The exception that was passing did not end the program: something else happens now."""
        slot = self.slot
        described, slot.passing = slot.passing, None
        if described is not None:
            self._note_handled(described)

    def _described(self, error: BaseException) -> dict[str, object]:
        from rankcall.record.exits import describe

        return describe(error, frames=6, text=500)

    def _note_handled(self, described: dict[str, object]) -> None:
        if len(self.handled) < 6:
            self.handled.append(described)
            if self.writer is not None:
                self.writer.write_blob("handled", self.handled)


_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_DEMO = os.path.join(_OURS, "demo") + os.sep
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep

recorder = Recorder()
