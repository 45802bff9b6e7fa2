"""Dumps of thousands of ranks, fast: the end of the job is simulated, what came before is printed from templates.

A rank's dump is a header of its own (its groups), the entries of earlier steps, all completed, and the entries of the
last step. Ranks of one pipeline stage have the same earlier entries but for the times and the groups' names. So these
are pickled once, as torch pickles them, and then copied with the times written over; names are referred to by number.
The last step of all ranks, where one of them is stuck, is run by the simulator, and its entries come from `write.dump`.
`test_simulator.py` compares such dumps with those of a job that was simulated as a whole.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .programs import Plan, course, lay_out, stage_of
from .simulate import Group, Issue, Layout, Node, Op, Program, Record, Simulation, Stuck
from .write import RANKS_PER_NODE, Form, Moment, dump, write_file

_TIMES = frozenset({"time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"})
_LONG = struct.Struct("<q")


class _Pickle:
    """Writes plain data as torch's pickler does: protocol 2, each string once, shared frames once. Times take eight
    bytes; their places are noted."""

    def __init__(self, first_number: int = 0) -> None:
        self.out = bytearray()
        self.next = first_number
        self.strings: dict[str, int] = {}
        self.shared: dict[int, int] = {}  # frames, by identity
        self.times: list[tuple[int, int]] = []  # place, value

    def get(self, number: int) -> None:
        self.out += b"h" + bytes((number,)) if number < 256 else b"j" + struct.pack("<I", number)

    def put(self) -> int:
        number = self.next
        self.next += 1
        self.out += b"q" + bytes((number,)) if number < 256 else b"r" + struct.pack("<I", number)
        return number

    def string(self, text: str) -> None:
        number = self.strings.get(text)
        if number is not None:
            self.get(number)
            return
        data = text.encode()
        self.out += b"X" + struct.pack("<I", len(data)) + data
        self.strings[text] = self.put()

    def integer(self, value: int) -> None:
        if 0 <= value < 256:
            self.out += b"K" + bytes((value,))
        elif 0 <= value < 65536:
            self.out += b"M" + struct.pack("<H", value)
        elif -(2**31) <= value < 2**31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            self.out += b"\x8a\x08" + _LONG.pack(value)

    def time(self, value: int) -> None:
        self.out += b"\x8a\x08"
        self.times.append((len(self.out), value))
        self.out += _LONG.pack(value)

    def value(self, value: Any) -> None:
        kind = type(value)
        if kind is str:
            self.string(value)
        elif kind is bool:
            self.out += b"\x88" if value else b"\x89"
        elif kind is int:
            self.integer(value)
        elif value is None:
            self.out += b"N"
        elif kind is float:
            self.out += b"G" + struct.pack(">d", value)
        elif kind is list:
            self.out += b"]("
            for each in value:
                if type(each) is dict:
                    self.frame(each)
                else:
                    self.value(each)
            self.out += b"e"
        elif kind is tuple:
            for each in value:
                self.value(each)
            self.out += b"\x86"
        else:
            self.mapping(value)

    def frame(self, value: dict[str, Any]) -> None:
        number = self.shared.get(id(value))
        if number is not None:
            self.get(number)
            return
        self.out += b"}"
        self.shared[id(value)] = self.put()
        self.items(value)

    def mapping(self, value: dict[str, Any]) -> None:
        self.out += b"}"
        self.items(value)

    def items(self, value: dict[str, Any]) -> None:
        self.out += b"("
        for name, each in value.items():
            self.string(name)
            if name in _TIMES and each is not None:
                self.time(each)
            else:
                self.value(each)
        self.out += b"u"


@dataclass
class _Step:
    """What every step of a stage is made of: its operations, its entries, and what it adds to each axis's numbers."""

    ops: list[Op]
    entries: int
    added: dict[str, list[int]]


@dataclass
class _Template:
    """The entries of the earlier steps, for the ranks of one stage whose last step has as many entries. `shifted`: the
    bytes for the clock of one node."""

    data: bytearray
    times: list[tuple[int, int]]
    strings: dict[str, int]
    shared: dict[int, int]
    next: int
    shifted: dict[float, bytes] = field(default_factory=dict)


@dataclass
class Bulk:
    """A job whose dumps are to be written; `stuck` is the rank that hangs. `entries`: how many each ring holds."""

    layout: Layout
    plan: Plan
    entries: int
    stuck: int
    form: Form
    history: int  # steps before the last
    simulation: Simulation
    place: int  # where in its last step the rank is stuck
    steps: list[_Step]  # by stage

    def files(self) -> Iterator[tuple[int, bytes, Moment]]:
        """Rank, bytes and moment of each dump."""
        templates: dict[tuple[int, int], _Template] = {}
        source = random.Random(11)
        clocks = [source.uniform(-0.002, 0.002) for _ in range(self.layout.world // RANKS_PER_NODE + 1)]
        end = self.simulation.last_moment + self.form.timeout_ms / 1000 + 1
        for rank in range(self.layout.world):
            moment = Moment(end + source.uniform(0, 1), clocks[rank // RANKS_PER_NODE], self.entries)
            yield rank, self._bytes(rank, moment, templates), moment

    def write(self, folder: Path) -> None:
        for rank, data, moment in self.files():
            write_file(folder / self.form.file_name(rank), data, moment)

    # --- one rank --------------------------------------------------------------------------------------------

    def _bytes(self, rank: int, moment: Moment, templates: dict[tuple[int, int], _Template]) -> bytes:
        stage = stage_of(self.layout, rank)
        before = self.history * self.steps[stage].entries
        # One older record of each group stands before the last step's, so that the groups' state is told rightly.
        simulated = self.simulation.ranks[rank].records
        older = self._last_of_each_group(rank)
        self.simulation.ranks[rank].records = [*older, *simulated]
        last = dump(self.simulation, rank, replace(moment, ring=len(simulated)), self.form, before - len(older))
        self.simulation.ranks[rank].records = simulated
        entries = last.pop("entries")
        head = _Pickle()
        head.out += b"\x80\x02}("
        names = self._head(head, last, rank, entries)
        template = templates.get((stage, len(entries)))
        if template is None:
            template = self._template(rank, moment, self.entries - len(entries), names, head.next)
            templates[(stage, len(entries))] = template
        body = template.shifted.get(moment.clock)
        if body is None:
            shift = int(moment.clock * 1e6) * 1000
            for place, value in template.times:
                _LONG.pack_into(template.data, place, value + shift)
            template.shifted.clear()  # a node's ranks follow each other
            body = template.shifted[moment.clock] = bytes(template.data)
        tail = _Pickle(template.next)
        tail.strings = {**template.strings, **names}
        tail.shared = dict(template.shared)
        for entry in entries:
            tail.mapping(entry)
        return b"".join((head.out, body, tail.out, b"eu."))

    def _head(
        self, head: _Pickle, document: dict[str, Any], rank: int, entries: list[dict[str, Any]]
    ) -> dict[str, int]:
        """All but the entries. Every rank puts as many strings, so that numbers after them agree; the numbers of its
        own names come back."""
        names: dict[str, int] = {}
        own = [text for axis in self.layout.axes.values() for text in (axis[rank].name, axis[rank].description)]
        own += [entry["thread_id"] for entry in entries[:1] if "thread_id" in entry]
        for text in own:
            head.string(text)
            names.setdefault(text, head.strings.pop(text))
            head.out += b"0"  # only to give it a number
        for name, value in document.items():
            head.string(name)
            if name == "pg_config":
                self._config(head, value, names)
            elif name == "pg_status":
                head.out += b"}("
                for number, counts in value.items():
                    head.strings.pop(number, None)
                    head.string(number)
                    head.strings.pop(number)
                    head.mapping(counts)
                head.out += b"u"
            else:
                head.value(value)
        head.string("entries")
        head.out += b"]("
        return {**head.strings, **names}

    @staticmethod
    def _config(head: _Pickle, config: dict[str, dict[str, str]], names: dict[str, int]) -> None:
        head.out += b"}("
        for group, told in config.items():
            head.get(names[group])
            head.out += b"}("
            for name, text in told.items():
                head.string(name)
                if text in names:
                    head.get(names[text])
                else:
                    data = text.encode()
                    head.out += b"X" + struct.pack("<I", len(data)) + data
            head.out += b"u"
        head.out += b"u"

    def _template(self, rank: int, moment: Moment, count: int, names: dict[str, int], first: int) -> _Template:
        records = self._past(rank, count)
        empty: list[Program] = [[] for _ in range(self.layout.world)]
        holder = Simulation(self.layout, empty, "nccl", seed=0)  # never run; it only holds the records
        holder.ranks[rank].records = records
        before = self.history * self.steps[stage_of(self.layout, rank)].entries
        document = dump(holder, rank, replace(moment, clock=0.0), self.form, before - len(records))
        body = _Pickle(first)
        body.strings = dict(names)
        for entry in document["entries"]:
            body.mapping(entry)
        return _Template(body.out, body.times, body.strings, body.shared, body.next)

    def _past(self, rank: int, count: int) -> list[Record]:
        """The newest `count` records of a rank's earlier steps, all of them done."""
        step = self.steps[stage_of(self.layout, rank)]
        steps = -(-count // step.entries)
        numbers = _numbers(self.layout, step, rank, self.history - steps)
        issues = step.ops * steps
        pace = self.plan.step_s * 1.6 / len(step.ops)
        found: list[Record] = []
        for place, op in enumerate(issues):
            group = self.layout.group(op.axis, rank)
            time = -pace * (len(issues) - place)
            found += _records_of(op, group, rank, numbers.setdefault(group.index, [0, 0, 0]), time, place)
        return found[-count:]

    def _last_of_each_group(self, rank: int) -> list[Record]:
        last: dict[int, Record] = {}
        for record in self._past(rank, self.steps[stage_of(self.layout, rank)].entries):
            if record.done is not None:
                last[record.group.index] = record
        return list(last.values())


def _records_of(op: Op, group: Group, rank: int, numbers: list[int], time: float, place: int) -> list[Record]:
    """The entries of one completed operation; advances its group's numbers."""
    found = []
    if op.parts:
        numbers[1] += 1
        mine = group.place[rank]
        for part in op.parts:
            numbers[2] += 1
            arrow = "->" if part.direction == "send" else "<-"
            name = f"{part.direction} {mine}{arrow}{mine + part.offset}"
            found.append(Record(group, op, name, numbers, time, place, is_p2p=True))
        if op.batched:
            closing = Record(group, op, "coalesced", numbers, time, place, is_p2p=True)
            closing.sized = False
            found.append(closing)
    else:
        numbers[0] += 1
        numbers[2] += 1
        found.append(Record(group, op, op.kind, numbers, time, place, is_p2p=False))
    found[-1].launch, found[-1].done = Node(), Node()
    found[-1].launch.time, found[-1].done.time = time + 1e-4, time + 2e-3
    return found


def _step(plan: Plan, stage: int) -> _Step:
    program = course(replace(plan, steps=1), stage).program
    ops = [instruction.op for instruction in program if type(instruction) is Issue]
    added: dict[str, list[int]] = {}
    entries = 0
    for op in ops:
        numbers = added.setdefault(op.axis, [0, 0, 0])
        numbers[1 if op.parts else 0] += 1
        numbers[2] += len(op.parts) or 1
        entries += (len(op.parts) or 1) + (1 if op.parts and op.batched else 0)
    return _Step(ops, entries, added)


def _numbers(layout: Layout, step: _Step, rank: int, steps: int) -> dict[int, list[int]]:
    """A rank's numbers after so many steps, by group."""
    found: dict[int, list[int]] = {}
    for axis, added in step.added.items():
        numbers = found.setdefault(layout.group(axis, rank).index, [0, 0, 0])
        for place in range(3):
            numbers[place] += steps * added[place]
    return found


def bulk(plan: Plan, entries: int, form: Form, seed: int = 0) -> Bulk:
    """A job on `plan.axes` whose steps are all alike, stuck on a random rank in its last step. Enough steps came
    before to fill the rings."""
    layout = lay_out(plan.axes, "new_group")
    rng = random.Random(seed)
    stages = range(plan.axes.get("pipeline", 1))
    steps = [_step(plan, stage) for stage in stages]
    history = max(-(-entries // step.entries) for step in steps) + 1
    last = [course(replace(plan, steps=1), stage, first_step=history).program for stage in stages]
    programs: list[Program] = [last[stage_of(layout, rank)] for rank in range(layout.world)]
    stuck = rng.randrange(layout.world)
    program = programs[stuck]
    place = rng.choice([place for place in range(len(program) // 3) if type(program[place]) is Issue])
    programs[stuck] = [*program[:place], Stuck(), *program[place:]]
    start = [_numbers(layout, steps[stage_of(layout, rank)], rank, history) for rank in range(layout.world)]
    simulation = Simulation(layout, programs, "nccl", seed, start).run()
    return Bulk(layout, plan, entries, stuck, form, history, simulation, place, steps)
