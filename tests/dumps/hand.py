"""Small dumps written by hand, one operation at a time, in torch's form."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BASE = 1_700_000_000.0  # seconds; far from now, so that the files' own times say nothing


@dataclass
class HandMade:
    """One rank's ring. `call` appends an operation; a group is named with its members."""

    rank: int
    backend: str = "nccl"
    version: str = "2.10"
    begun: int = 0
    entries: list[dict[str, Any]] = field(default_factory=list)
    groups: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def group(self, name: str, members: Sequence[int], description: str = "undefined") -> HandMade:
        self.groups[name] = (description, list(members))
        return self

    def call(
        self, op: str = "all_reduce", *, group: str = "0", size: int = 4, done: bool = True, at: float = 0.0,
        line: int = 0, dtype: str = "Float", pg_id: int | None = None, p2p: bool = False,
    ) -> HandMade:  # fmt: skip
        if not p2p:
            self.numbers[group] = self.numbers.get(group, 0) + 1
        gloo = self.backend == "gloo"
        created = int((BASE + at) * 1e9)
        entry: dict[str, Any] = {
            "record_id": self.begun + len(self.entries),
            "pg_id": pg_id if pg_id is not None else sorted(self.groups).index(group),
            "process_group": (group, self.groups[group][0]),
            "collective_seq_id": self.numbers.get(group, 0), "p2p_seq_id": 0, "op_id": 0,
            "profiling_name": f"{self.backend}:{op}",
            "time_created_ns": created,
            "input_sizes": [[size]], "input_dtypes": [dtype], "output_sizes": [[size]], "output_dtypes": [dtype],
            "state": "scheduled" if gloo or not done else "completed",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": created + 1_000_000 if done and not gloo else None,
            "retired": done, "timeout_ms": 600_000, "is_p2p": p2p,
        }  # fmt: skip
        if line:
            entry["frames"] = [
                {"name": op, "filename": "/usr/lib/python3.11/site-packages/torch/distributed/d.py", "line": 1},
                {"name": "step", "filename": "/home/ada/train.py", "line": line},
            ]
        self.entries.append(entry)
        return self

    def dump(self) -> dict[str, Any]:
        gloo = self.backend == "gloo"
        config = {
            name: {"name": name, "desc": about, "ranks": str(members)} for name, (about, members) in self.groups.items()
        }
        if gloo:
            config = {"": {"name": "", "desc": "", "ranks": "[]"}}
        return {"version": self.version, "pg_config": config, "pg_status": {}, "entries": self.entries}

    def write(self, folder: Path, name: str = "nccl_trace_rank_{rank}", *, written: float | None = None) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name.format(rank=self.rank)
        if path.suffix == ".json":
            path.write_text(json.dumps(self.dump()))
        else:
            path.write_bytes(pickle.dumps(self.dump(), 2))
        if written is not None:
            os.utime(path, (BASE + written, BASE + written))
        return path


def world(size: int, backend: str = "nccl") -> list[HandMade]:
    """Ranks that share the default group."""
    return [HandMade(rank, backend).group("0", range(size), "default_pg") for rank in range(size)]


def stuck(size: int, missing: int, steps: int = 5) -> list[HandMade]:
    """All but one rank wait in the last all_reduce."""
    ranks = world(size)
    for rank in ranks:
        for step in range(steps):
            rank.call(at=step, line=10)
        if rank.rank != missing:
            rank.call(at=steps, line=20, done=False)
    return ranks
