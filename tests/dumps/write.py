"""Writes what a rank's flight recorder holds at a moment of a simulated job, in the form that torch gives it.

What is completed, retired and known of times follows torch's recorder: with NCCL a watchdog looks every 100 ms, retires
what has ended, and the dump itself looks once more; a start is only seen with TORCH_NCCL_ENABLE_TIMING. gloo knows
neither starts nor states, only `retired`, and does not record sends and receives.
"""

from __future__ import annotations

import json
import math
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .simulate import Group, Record, Simulation, Site

# When the simulated job began: seconds since the epoch.
BEGIN = 1_790_000_000
WATCHDOG_S = 0.1

# File names: torch's defaults, one of the user's own, and one folder a node.
SCHEMES = (
    "nccl_trace_rank_{rank}",
    "comm_lib_trace_rank_{rank}",
    "run7-{rank}",
    "node{node}/nccl_trace_rank_{rank}",
)
RANKS_PER_NODE = 8

# gloo's own names; what is not here has the same name.
_GLOO_NAMES = {
    "_all_gather_base": "all_gather",
    "_reduce_scatter_base": "all_reduce",
    "all_reduce_barrier": "barrier",
}


@dataclass(frozen=True)
class Form:
    """How a job's dumps look. `version` of torch's schema: 2.0 to 2.10. `ring`: entries kept. `timing`:
    TORCH_NCCL_ENABLE_TIMING. `frames`: with stacks (pickle only)."""

    version: str = "2.10"
    container: Literal["pickle", "json"] = "pickle"
    timing: bool = False
    frames: bool = True
    timeout_ms: int = 600_000
    scheme: str = SCHEMES[0]

    @property
    def minor(self) -> int:
        return int(self.version.partition(".")[2])

    def file_name(self, rank: int) -> str:
        name = self.scheme.format(rank=rank, node=rank // RANKS_PER_NODE)
        return f"{name}.json" if self.container == "json" else name


@dataclass(frozen=True)
class Moment:
    """When and where one rank's dump is taken: `at` in the job's time, `clock` how far the rank's clock is ahead."""

    at: float
    clock: float = 0.0
    ring: int = 2000

    def wall_ns(self, time: float) -> int:
        return int((BEGIN + time + self.clock) * 1e6) * 1000  # a float holds no single nanoseconds at this size


def dump(simulation: Simulation, rank: int, moment: Moment, form: Form, first_record: int = 0) -> dict[str, Any]:
    """One rank's dump, as torch's pickle unpickles. `first_record` numbers the first record of the simulation."""
    gloo = simulation.backend == "gloo"
    records = [record for record in simulation.ranks[rank].records if record.created <= moment.at]
    written = [record for record in records if not (gloo and record.is_p2p)]
    writer = _Writer(simulation, rank, moment, form)
    result: dict[str, Any] = {"version": form.version, "pg_config": writer.config(written)}
    library = "" if gloo else "2.27.5"
    if form.minor >= 8:
        result["comm_lib_version"] = library
    elif form.minor >= 6:
        result["nccl_version"] = library
    if form.minor >= 3:
        result["pg_status"] = writer.status(records)
    kept = max(0, len(written) - moment.ring)
    result["entries"] = [
        writer.entry(record, first_record + kept + number) for number, record in enumerate(written[kept:])
    ]
    return result


def to_bytes(document: Mapping[str, Any], form: Form) -> bytes:
    """The bytes of a dump's file."""
    return pickle.dumps(document, 2) if form.container == "pickle" else to_json(document)


def to_json(document: Mapping[str, Any]) -> bytes:
    """torch's JSON: sorted, no stacks, 0 for an unknown time, numbers of pg_status as text, no `entries` if empty."""
    plain = dict(document)
    plain["pg_status"] = {
        group: {name: str(value) for name, value in numbers.items()}
        for group, numbers in document.get("pg_status", {}).items()
    }
    plain["entries"] = [
        {name: 0 if value is None else value for name, value in entry.items() if name != "frames"}
        for entry in document["entries"]
    ]
    if not plain["entries"]:
        del plain["entries"]
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def write_file(path: Path, data: bytes, moment: Moment) -> None:
    """Write a dump, last modified at its moment by its rank's clock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    time = moment.wall_ns(moment.at)
    os.utime(path, ns=(time, time))


class _Writer:
    """What one rank's recorder makes of its records."""

    def __init__(self, simulation: Simulation, rank: int, moment: Moment, form: Form) -> None:
        self.simulation = simulation
        self.rank = rank
        self.moment = moment
        self.form = form
        self.minor = form.minor
        self.gloo = simulation.backend == "gloo"
        self.phase = (rank * 0.037) % WATCHDOG_S
        self.ids = simulation.layout.ids[rank]
        self.thread_id = str(140_021_834_972_032 + 4096 * rank)
        self.names: dict[str, str] = {}

    # --- groups ----------------------------------------------------------------------------------------------

    def config(self, records: list[Record]) -> dict[str, dict[str, str]]:
        """Groups are told when they are first used, in the order of their names."""
        layout = self.simulation.layout
        if self.gloo:
            ranks = list(range(layout.world)) if len(layout.groups) == 1 else []
            return {"": {"name": "", "desc": "", "ranks": str(ranks)}}
        used = {record.group.index: record.group for record in records}
        told = {}
        for group in sorted(used.values(), key=lambda group: (group.name, group.description, group.incarnation)):
            told[group.name] = {"name": group.name, "desc": group.description, "ranks": self.members(group)}
        return told

    def members(self, group: Group) -> str:
        # A default group that is not the first of its process does not know its members.
        later_default = group.description == "default_pg" and group.incarnation > 0
        return "[]" if later_default else group.text

    def status(self, records: list[Record]) -> dict[str, dict[str, int]]:
        told: dict[str, dict[str, int]] = {}
        for record in records:
            if record.done is None:
                continue
            key = str(self.ids[record.group.index])
            numbers = told.setdefault(
                key,
                {"last_enqueued_collective": -1, "last_started_collective": -1, "last_completed_collective": -1},
            )
            number = record.op_id if self.gloo else record.p2p_seq if record.is_p2p else record.seq
            numbers["last_enqueued_collective"] = number
            if self.retired_at(record) <= self.moment.at:
                numbers["last_completed_collective"] = number
                if self.form.timing and not self.gloo:
                    numbers["last_started_collective"] = max(number, numbers["last_started_collective"])
            elif self.form.timing and not self.gloo and self.launched(record):
                numbers["last_started_collective"] = max(number, numbers["last_started_collective"])
        return dict(sorted(told.items(), key=lambda item: int(item[0])))

    # --- entries ---------------------------------------------------------------------------------------------

    def launched(self, record: Record) -> bool:
        node = record.launch
        return node is not None and node.time is not None and node.time <= self.moment.at

    def ended(self, record: Record) -> bool:
        node = record.done
        return node is not None and node.time is not None and node.time <= self.moment.at

    def retired_at(self, record: Record) -> float:
        """When the watchdog noticed the end; infinity if there was none."""
        if not self.ended(record):
            return math.inf
        time = record.done.time  # type: ignore[union-attr]
        if self.gloo:
            return time
        return self.phase + math.ceil((time - self.phase) / WATCHDOG_S) * WATCHDOG_S

    def entry(self, record: Record, number: int) -> dict[str, Any]:
        moment, form, op = self.moment, self.form, record.op
        entry: dict[str, Any] = {}
        if form.frames:
            entry["frames"] = _frames(op.site)
        entry["record_id"] = number
        entry["pg_id"] = self.ids[record.group.index]
        entry["process_group"] = (record.group.name, record.group.description)
        if self.minor >= 10:
            entry["thread_name"] = op.thread
            entry["thread_id"] = self.thread_id
        entry["collective_seq_id"] = record.seq
        entry["p2p_seq_id"] = 0 if self.gloo else record.p2p_seq
        entry["op_id"] = record.op_id
        entry["profiling_name"] = self.name(record.name)
        entry["time_created_ns"] = moment.wall_ns(record.created)
        retired_at = self.retired_at(record)
        if form.timing and retired_at <= moment.at and not self.gloo:
            entry["duration_ms"] = (record.done.time - record.launch.time) * 1e3  # type: ignore[union-attr, operator]
        inputs, outputs = self.sizes(record)
        entry["input_sizes"] = [list(shape) for shape in inputs]
        if self.minor >= 2:
            entry["input_dtypes"] = [op.dtype] * len(inputs)
        entry["output_sizes"] = [list(shape) for shape in outputs]
        if self.minor >= 2:
            entry["output_dtypes"] = [op.dtype] * len(outputs)
        state, started, completed = "scheduled", None, None
        if not self.gloo:
            if self.ended(record):
                state, completed = "completed", moment.wall_ns(min(retired_at, moment.at))
                started = completed if form.timing else None
            elif form.timing and self.launched(record):
                state, started = "started", moment.wall_ns(moment.at)  # the dump itself noticed
        entry["state"] = state
        entry["time_discovered_started_ns"] = started
        entry["time_discovered_completed_ns"] = completed
        entry["retired"] = retired_at <= moment.at
        if self.minor >= 1:
            entry["timeout_ms"] = form.timeout_ms
            entry["is_p2p"] = record.is_p2p
        return entry

    def name(self, kind: str) -> str:
        name = self.names.get(kind)
        if name is None:
            name = f"gloo:{_GLOO_NAMES.get(kind, kind)}" if self.gloo else f"nccl:{kind}"
            self.names[kind] = name
        return name

    def sizes(self, record: Record) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        op = record.op
        if not record.sized:
            return (), ()
        if not self.gloo:
            return op.inputs, op.outputs
        if op.kind == "all_reduce_barrier":
            return (), ()
        if op.kind == "_all_gather_base":
            return op.inputs, tuple((len(record.group.ranks), *shape) for shape in op.inputs)
        if op.kind == "_reduce_scatter_base":
            return op.inputs, op.inputs
        return op.inputs, op.outputs


_FRAMES: dict[tuple[str, str, int], dict[str, object]] = {}


def _frames(site: Site) -> list[dict[str, object]]:
    """torch makes one object of each frame and shares it between the entries."""
    found = []
    for frame in site.frames:
        if frame not in _FRAMES:
            _FRAMES[frame] = {"name": frame[0], "filename": frame[1], "line": frame[2]}
        found.append(_FRAMES[frame])
    return found
