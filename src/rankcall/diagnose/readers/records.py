"""Reads one record from outside: bytes -> the snapshot's types. The file may be written to meanwhile, and may hold
anything: sizes are fixed, every number is checked, what makes no sense is left out."""

from __future__ import annotations

import math
import mmap
import os
import stat
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec

from rankcall.record import layout
from rankcall.snapshot import (
    Counters,
    Event,
    EventKind,
    ExceptionNote,
    ExitNote,
    Frame,
    Group,
    Phase,
    Process,
    Thread,
    Wait,
    WaitKind,
)

_MOST_RANKS = 131_072  # of one group
_RETRIES = 4


class SlotView(msgspec.Struct, frozen=True):
    """A slot as it stands: what a thread does now. `changes` grows with every change."""

    changes: int
    thread: int
    phase: Phase
    wait: str
    main: bool
    phase_since: float
    since: float
    phase_site: int
    step: int | None
    event: int
    operations: int
    time: float


class Record:
    """An open record. Raises ValueError for what is none; every read after that answers from what is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Not blocking: what lies there under a record's name may be a FIFO.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size != layout.SIZE:
                raise ValueError(f"{path.name}: {status.st_size} bytes, not a file of {layout.SIZE}")
            self.map = mmap.mmap(file.fileno(), layout.SIZE, access=mmap.ACCESS_READ)
        magic, version, _, self.pid, self.start = layout.HEADER.unpack_from(self.map, 0)
        if magic != layout.MAGIC or version != layout.LAYOUT_VERSION:
            self.map.close()
            raise ValueError(f"{path.name}: not a record of layout {layout.LAYOUT_VERSION}")
        self._strings: list[tuple[int, str]] = [(0, "")]
        self._strings_at = 0
        self._identity_generation = -1
        self._identity: dict[str, object] = {}
        self._ring: deque[Event] = deque(maxlen=layout.RING_EVENTS)
        self._ring_end = 0

    def close(self) -> None:
        self.map.close()

    # --- plain parts -------------------------------------------------------------------------------------------

    def counter(self, name: str) -> int:
        value: int = layout.COUNTER.unpack_from(self.map, layout.COUNTER_INDEX[name])[0]
        return value

    def blob(self, name: str) -> object:
        """The JSON of a blob, None if there is none or it is being written over and over."""
        at, half = layout.BLOB_AT[name], layout.BLOBS[name]
        for _ in range(_RETRIES):
            generation, *lengths = layout.BLOB_HEAD.unpack_from(self.map, at)
            if generation == 0:
                return None
            which = generation & 1
            length = min(lengths[which], half)
            data = self.map[at + 64 + which * half : at + 64 + which * half + length]
            if layout.BLOB_HEAD.unpack_from(self.map, at)[0] == generation:
                try:
                    return cast("object", msgspec.json.decode(data))
                except (msgspec.DecodeError, RecursionError):
                    continue
        return None

    def identity(self) -> dict[str, object]:
        generation = layout.BLOB_HEAD.unpack_from(self.map, layout.BLOB_AT["identity"])[0]
        if generation != self._identity_generation:
            found = self.blob("identity")
            if isinstance(found, dict):
                self._identity = found
                self._identity_generation = generation
        return self._identity

    def slots(self) -> list[SlotView]:
        used = min(max(self.counter("slots_used"), 0), layout.SLOTS)
        views = (self._slot(number) for number in range(used))
        return [view for view in views if view is not None]

    def _slot(self, number: int) -> SlotView | None:
        at = layout.SLOTS_AT + number * layout.SLOT_SIZE
        for _ in range(_RETRIES):
            (begin, thread, phase, wait, main, phase_since, since, site, step, event, operations, time, end) = (
                layout.SLOT.unpack_from(self.map, at)
            )
            if begin == end and begin > 0:
                return SlotView(
                    changes=begin,
                    thread=thread,
                    phase=cast("Phase", _pick(layout.PHASES, phase, "idle")),
                    wait=_pick(layout.WAITS, wait, "none"),
                    main=bool(main),
                    phase_since=_seconds(phase_since) or 0.0,
                    since=_seconds(since) or 0.0,
                    phase_site=site,
                    step=None if step < 0 else step,
                    event=event,
                    operations=operations,
                    time=_seconds(time) or 0.0,
                )
        return None

    # --- strings -----------------------------------------------------------------------------------------------

    def text(self, number: int) -> str:
        """A string of the table; empty for 0 and for what is not there."""
        if number >= len(self._strings):
            self._read_strings()
        return self._strings[number][1] if 0 <= number < len(self._strings) else ""

    def _read_strings(self) -> None:
        end = min(max(self.counter("strings_end"), 0), layout.STRINGS_SIZE)
        while self._strings_at + layout.STRING_HEAD.size <= end:
            at = layout.STRINGS_AT + self._strings_at
            length, tag = layout.STRING_HEAD.unpack_from(self.map, at)
            start = at + layout.STRING_HEAD.size
            if self._strings_at + layout.STRING_HEAD.size + length > end:
                break
            data = self.map[start : start + length]
            self._strings.append((tag, data.decode("utf-8", "replace")))
            self._strings_at += layout.STRING_HEAD.size + length

    def site(self, number: int) -> Frame | None:
        parts = self.text(number).split("\0")
        if len(parts) != 3 or not parts[1].isdigit():
            return None
        return Frame(parts[0], int(parts[1]), parts[2])

    # --- groups ------------------------------------------------------------------------------------------------

    def groups(self) -> list[Group]:
        """The process groups this rank knows, in the order in which it met them."""
        self._read_strings()
        found: list[Group] = []
        for tag, text in self._strings:
            if tag != layout.TAG_GROUP:
                continue
            try:
                fact = msgspec.json.decode(text.encode(), type=_GroupFact)
            except msgspec.DecodeError:
                continue
            seq = self._group_number(fact.number)
            members = expand(fact.members)
            key = f"{spans_text(fact.members)}#{fact.incarnation}"
            found.append(
                Group(
                    key=key,
                    name=fact.name,
                    description=fact.description,
                    backend=fact.backend,
                    members=members,
                    incarnation=fact.incarnation,
                    enqueued=None if seq < 0 else seq,
                )
            )
        return found

    def _group_number(self, number: int) -> int:
        if not 0 <= number < layout.GROUPS:
            return layout.NONE
        value: int = layout.GROUP.unpack_from(self.map, layout.GROUPS_AT + 8 * number)[0]
        return value

    # --- events ------------------------------------------------------------------------------------------------

    def event(self, index: int, groups: list[Group]) -> Event | None:
        """The event of that number, None if the ring has gone on past it."""
        at = layout.RING_AT + (index & (layout.RING_EVENTS - 1)) * layout.EVENT_SIZE
        fields = layout.EVENT.unpack_from(self.map, at)
        if fields[0] != index or fields[-1] != index:
            return None
        (
            _,
            time,
            kind,
            op,
            outer,
            dtype,
            reduce_op,
            _,
            group,
            seq,
            numel,
            root,
            peer,
            tag,
            nth,
            step,
            site,
            place,
            _,
        ) = fields
        known = groups[group] if 0 <= group < len(groups) else None
        return Event(
            index=index,
            time=_seconds(time) or 0.0,
            kind=cast("EventKind", _pick(layout.KINDS, kind, "wait")),
            place=_plain(place),
            op=self.text(op),
            outer=self.text(outer),
            group=known.key if known else "",
            seq=_plain(seq),
            numel=_plain(numel),
            dtype=self.text(dtype) or None,
            reduce_op=self.text(reduce_op) or None,
            root=_plain(root),
            peer=_plain(peer),
            tag=_plain(tag),
            nth=_plain(nth),
            step=_plain(step),
            site=self.site(site),
        )

    def ring(self, groups: list[Group]) -> list[Event]:
        """All events that the ring still holds, oldest first; only those since the last call are decoded."""
        end = self.counter("events")
        for index in range(max(self._ring_end, end - layout.RING_EVENTS), end):
            event = self.event(index, groups)
            if event is not None:
                self._ring.append(event)
        self._ring_end = max(end, self._ring_end)
        return list(self._ring)

    def wait(self, slot: SlotView, groups: list[Group]) -> Wait | None:
        """What the thread of a slot waits in, if it is inside a blocking call."""
        if slot.wait == "none":
            return None
        event = self.event(slot.event, groups) if slot.event >= 0 else None
        kind = cast("WaitKind", slot.wait)
        if event is None:
            return Wait(kind=kind, op="wait", since=slot.since, site=self.site(slot.phase_site))
        if event.kind in ("send", "recv"):
            kind = "p2p"
        backend = next((group.backend for group in groups if group.key == event.group), "")
        return Wait(
            kind=kind,
            op=event.kind if kind == "p2p" else event.op,
            group=event.group,
            backend=backend,
            seq=event.seq,
            outer=event.outer or (event.op if kind == "p2p" else ""),
            numel=event.numel,
            dtype=event.dtype,
            reduce_op=event.reduce_op,
            root=event.root,
            peer=event.peer,
            tag=event.tag,
            nth=event.nth,
            site=self.site(slot.phase_site) or event.site,
            since=slot.since,
        )

    def counters(self) -> Counters:
        numbers = {
            name: max(self.counter(name), 0) for name in Counters.__struct_fields__ if name in layout.COUNTER_INDEX
        }
        numbers["collectives"] = sum(slot.operations for slot in self.slots())
        return Counters(**numbers)

    def loop_step(self) -> int | None:
        return _plain(self.counter("loop_step"))

    # --- notes -------------------------------------------------------------------------------------------------

    def exit_note(self) -> ExitNote | None:
        found = self.blob("note")
        if not isinstance(found, dict) or found.get("kind") not in ("exception", "exit", "finish"):
            return None
        code, site, error, time = (found.get(name) for name in ("code", "site", "exception", "time"))
        return ExitNote(
            kind=found["kind"],
            time=_seconds(time) or 0.0,
            code=code if isinstance(code, int) else None,
            site=_frame(site),
            exception=_exception(error),
        )

    def handled(self) -> tuple[ExceptionNote, ...]:
        found = self.blob("handled")
        notes = [_exception(item) for item in found] if isinstance(found, list) else []
        return tuple(note for note in notes if note is not None)


def process_from_record(record: Record) -> Process:
    """All that the record itself says of its process; whether it lives is for others to add."""
    identity = record.identity()
    groups = record.groups()
    ring = record.ring(groups)
    groups = _with_recorded(groups, ring)
    initialized = identity.get("initialized")
    return Process(
        host=_text(identity.get("host")),
        pid=record.pid,
        start_time=_seconds(record.start) or 0.0,
        attempt=number(identity.get("attempt")) or 0,
        launcher_rank=number(identity.get("launcher_rank")),
        claimed_rank=number(identity.get("claimed_rank")),
        local_rank=number(identity.get("local_rank")),
        world_size=number(identity.get("world_size")),
        initialized=initialized if initialized in ("entered", "done", "destroyed") else "no",
        backend=_text(identity.get("backend")),
        master=_text(identity.get("master")),
        launcher_master=_text(identity.get("launcher_master")),
        uses_agent_store=identity.get("uses_agent_store") is True,
        threads=tuple(thread_from_slot(record, slot, groups) for slot in record.slots()),
        groups=tuple(groups),
        counters=record.counters(),
        ring=tuple(ring),
        loop_step=record.loop_step(),
        last_change=max((slot.time for slot in record.slots()), default=None),
        exit_note=record.exit_note(),
        handled=record.handled(),
        command=tuple(_text(part) for part in _list(identity.get("command"))),
        devices=tuple(_text(part) for part in _list(identity.get("devices"))),
        versions={key: _text(value) for key, value in _dict(identity.get("versions")).items()},
        notes=tuple(f"a hook failed: {_text(text)}" for text in _list(identity.get("faults"))),
    )


def thread_from_slot(record: Record, slot: SlotView, groups: list[Group]) -> Thread:
    return Thread(
        tid=slot.thread,
        main=slot.main,
        phase=slot.phase,
        phase_since=slot.phase_since,
        phase_site=record.site(slot.phase_site),
        step=slot.step,
        wait=record.wait(slot, groups),
        collectives=slot.operations,
    )


def _with_recorded(groups: list[Group], ring: Sequence[Event]) -> list[Group]:
    """A group's number is stored at forwards, backwards and steps; the operations in between are in the ring."""
    latest: dict[str, int] = {}
    for event in ring:
        if event.seq is not None and event.seq > latest.get(event.group, -1):
            latest[event.group] = event.seq
    return [
        msgspec.structs.replace(group, enqueued=max(group.enqueued or 0, latest[group.key]))
        if group.key in latest
        else group
        for group in groups
    ]


class _GroupFact(msgspec.Struct):
    number: int
    name: str
    description: str
    backend: str
    members: list[tuple[int, int]]
    incarnation: int


def expand(spans: list[tuple[int, int]]) -> tuple[int, ...]:
    """Spans of ranks as the ranks; at most so many, whatever the record claims."""
    ranks: list[int] = []
    for first, last in spans:
        ranks.extend(range(first, min(last + 1, first + _MOST_RANKS - len(ranks))))
        if len(ranks) >= _MOST_RANKS:
            break
    return tuple(ranks)


def spans_text(spans: list[tuple[int, int]]) -> str:
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _pick(names: tuple[str, ...], number: int, otherwise: str) -> str:
    return names[number] if 0 <= number < len(names) else otherwise


def _plain(value: int) -> int | None:
    return None if value < 0 else value


def _frame(value: object) -> Frame | None:
    if isinstance(value, list) and len(value) == 3 and isinstance(value[1], int):
        return Frame(str(value[0]), value[1], str(value[2]))
    return None


def _exception(value: object) -> ExceptionNote | None:
    if not isinstance(value, dict):
        return None
    frames = [_frame(item) for item in _list(value.get("frames"))]
    time = value.get("time")
    return ExceptionNote(
        type=str(value.get("type", "")),
        message=str(value.get("message", "")),
        frames=tuple(frame for frame in frames if frame is not None),
        chain=tuple(str(item) for item in _list(value.get("chain"))),
        time=_seconds(time),
        parameters=tuple(str(item) for item in _list(value.get("parameters"))),
    )


def number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seconds(value: object) -> float | None:
    """A time that a snapshot can hold: neither NaN nor infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
