"""Which runs of this user are alive on this machine, for `rankcall why` without an argument."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rankcall.rundir import memory_parents
from rankcall.snapshot import Snapshot
from rankcall.watch import processes

MARK = "run.mark"


class LiveRun(msgspec.Struct, frozen=True):
    """A run whose launcher is alive."""

    run_dir: str
    command: tuple[str, ...]
    started_at: float
    launcher: int
    records: str

    def snapshot(self) -> Snapshot:
        """Look at its ranks from outside, twice, half a second apart, and ask them for their stacks."""
        from rankcall.watch.outside import snapshot_of

        return snapshot_of(self)


def write_mark(records: Path, run_dir: Path, command: Sequence[str], started_at: float) -> None:
    """Leave word in the record folder of who runs here."""
    stat = processes.read_stat(os.getpid())
    mark = {
        "run_dir": str(run_dir),
        "command": list(command),
        "started_at": started_at,
        "launcher": os.getpid(),
        "launcher_start": stat.start if stat else 0,
    }
    with contextlib.suppress(OSError):
        (records / MARK).write_text(json.dumps(mark))


def live_runs() -> list[LiveRun]:
    """The runs of this user on this machine, newest first."""
    found = []
    for parent in memory_parents():
        for folder in sorted(parent.glob(f"rankcall-{os.getuid()}-*")):
            run = _read_mark(folder)
            if run is not None:
                found.append(run)
    return sorted(found, key=lambda run: -run.started_at)


def _read_mark(folder: Path) -> LiveRun | None:
    try:
        if folder.stat().st_uid != os.getuid():
            return None
        mark = json.loads((folder / MARK).read_text())
        pid, start = int(mark["launcher"]), int(mark["launcher_start"])
        stat = processes.read_stat(pid)
        if stat is None or stat.start != start:
            return None
        return LiveRun(
            run_dir=str(mark["run_dir"]),
            command=tuple(str(part) for part in mark["command"]),
            started_at=float(mark["started_at"]),
            launcher=pid,
            records=str(folder),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_stale() -> None:
    """Remove record folders of this user whose launcher is gone and in which no rank lives. Never raises."""
    import shutil

    for parent in memory_parents():
        with contextlib.suppress(OSError):
            for folder in parent.glob(f"rankcall-{os.getuid()}-*"):
                if folder.stat().st_uid == os.getuid() and _is_stale(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _is_stale(folder: Path) -> bool:
    try:
        mark = json.loads((folder / MARK).read_text())
        stat = processes.read_stat(int(mark["launcher"]))
        if stat is not None and stat.start == int(mark["launcher_start"]):
            return False
    except (OSError, ValueError, KeyError, TypeError):
        if time.time() - folder.stat().st_mtime < 60:
            return False  # in the making
    for path in folder.glob("*.rec"):
        parts = path.stem.rsplit("-", 2)
        if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
            stat = processes.read_stat(int(parts[1]))
            if stat is not None and stat.start == int(parts[2]):
                return False
    return True
