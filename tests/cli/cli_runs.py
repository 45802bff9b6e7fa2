"""Run folders made by hand, and a command line run as users run it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from rankcall.findings import Report, Verdict, report_to_json
from rankcall.snapshot import (
    Counters,
    Exit,
    ExitNote,
    Frame,
    Group,
    Process,
    Snapshot,
    Thread,
    Wait,
    snapshot_to_json,
)

SCRIPT = "/home/user/project/train.py"
SOURCE = "import torch.distributed as dist\n\ndist.all_reduce(x)\nif rank == 2:\n    time.sleep(1e6)\ndist.barrier()\n"


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def command(*arguments: str, cwd: Path | None = None, **environment: str) -> Ended:
    """Run the command in a process of its own, without a terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "rankcall", *arguments],
        cwd=cwd, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


def _process(rank: int) -> Process:
    return Process(
        host="host-a", pid=4000 + rank, start_time=1000.0, launcher_rank=rank, claimed_rank=rank, local_rank=rank,
        world_size=4, initialized="done", backend="gloo", state="sleeping", busy=0.0, last_change=1100.0,
        counters=Counters(events=2, collectives=2),
        groups=(Group("0-3#0", "0", "default_pg", "gloo", (0, 1, 2, 3), enqueued=2, finished=1),),
    )  # fmt: skip


def sleeping_rank() -> Snapshot:
    """Ranks 0, 1 and 3 wait in a barrier; rank 2 sleeps before it."""
    wait = Wait("collective", "barrier", "0-3#0", "gloo", 2, "barrier", site=Frame(SCRIPT, 6, "<module>"), since=1100.0)
    waiting = Thread(
        1, "MainThread", True, "collective", 1100.0, Frame(SCRIPT, 6, "<module>"), 0, wait, 30.0,
        (Frame("/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 5356, "barrier"),
         Frame(SCRIPT, 6, "<module>")), 0.0, 2,
    )  # fmt: skip
    asleep = Thread(1, "MainThread", True, "idle", 1100.0, None, 0, None, 30.0, (Frame(SCRIPT, 5, "<module>"),), 0.0, 1)
    processes = [replace(_process(rank), threads=(waiting,)) for rank in (0, 1, 3)]
    behind = (Group("0-3#0", "0", "default_pg", "gloo", (0, 1, 2, 3), enqueued=1, finished=1),)
    processes.append(replace(_process(2), threads=(asleep,), blocked_in="clock_nanosleep", groups=behind))
    return Snapshot(
        taken_at=1130.0, reason="stall", command=("train.py",), run_dir="/somewhere/else", started_at=1000.0,
        world_size=4, quiet_for=30.0, stall_after=20.0, stalled=True, processes=tuple(processes),
        sources={SCRIPT: SOURCE},
    )  # fmt: skip


def healthy() -> Snapshot:
    """Four ranks that ended well after 20 steps."""
    groups = (Group("0-3#0", "0", "default_pg", "gloo", (0, 1, 2, 3), enqueued=22, finished=22, destroyed=True),)
    counters = Counters(events=60, forwards=20, backwards=20, optimizer_steps=20)
    processes = tuple(
        replace(
            _process(rank),
            state="gone",
            initialized="destroyed",
            loop_step=20,
            exit=Exit(0, time=1200.0),
            exit_note=ExitNote("finish", 1200.0, 0),
            counters=counters,
            groups=groups,
        )
        for rank in range(4)
    )
    return Snapshot(
        taken_at=1201.0, reason="end", command=("train.py",), started_at=1000.0, world_size=4, outcome="completed",
        processes=processes,
    )  # fmt: skip


def verdict(pitfall: str = "process-stuck", sentence: str = "rank 2 sleeps at train.py:5") -> Verdict:
    return Verdict(
        pitfall=pitfall, layer="program", title="", sentence=sentence, confidence=0.9, proven=False, culprits=(2,),
        hosts=("host-a",), waiting=(0, 1, 3), where=None, why="", fix=(), detected_after_s=1.25,
    )  # fmt: skip


def run_folder(path: Path, snapshot: Snapshot | None, report: Report | None = None) -> Path:
    """A folder as `rankcall run` leaves it."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "run.json").write_text('{"schema": "rankcall.run/1", "id": "x", "version": "0.1.0"}\n')
    if snapshot is not None:
        (path / "snapshot.json").write_bytes(snapshot_to_json(snapshot))
    if report is not None:
        (path / "report.json").write_bytes(report_to_json(report))
    return path
