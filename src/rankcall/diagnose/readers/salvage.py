"""A run whose launcher was killed wrote no snapshot; what its guard saved of the records still tells where each rank
was at the end."""

from __future__ import annotations

import re
import time
from pathlib import Path

import msgspec

from rankcall.diagnose.readers.log_tail import log_tail
from rankcall.diagnose.readers.records import Record, process_from_record
from rankcall.snapshot import Exit, Process, Snapshot

_ATTEMPT = re.compile(r"attempt-(\d+)$")
_MOST_RECORDS = 65_536
_MOST_RUN_FILE = 16 << 20


class _RunFile(msgspec.Struct):
    command: list[str] = []
    started_at: float | None = None


def snapshot_from_records(folder: Path) -> Snapshot | None:
    """The last attempt's records as a snapshot; None if there are none. How the processes ended is not known: they
    were ended with the launcher."""
    attempts = sorted(
        (int(match.group(1)), path) for path in folder.glob("attempt-*") if (match := _ATTEMPT.search(path.name))
    )
    for attempt, path in reversed(attempts):
        processes = _processes(path)
        if processes:
            facts = _run_file(folder / "run.json")
            return Snapshot(
                taken_at=_saved_at(path),
                reason="interrupt",
                command=tuple(facts.command),
                run_dir=str(folder),
                started_at=facts.started_at,
                world_size=max((process.world_size or 0 for process in processes), default=0) or None,
                attempt=attempt,
                outcome="stopped",
                processes=tuple(processes),
                sources=_sources(processes),
                notes=("the launcher was killed; this is what the ranks had recorded until then",),
            )
    return None


def _saved_at(attempt: Path) -> float:
    """When the guard saved the records: right after it had ended the ranks."""
    try:
        return max(path.stat().st_mtime for path in (attempt / "records").glob("*.rec"))
    except (OSError, ValueError):
        return time.time()


def _processes(attempt: Path) -> list[Process]:
    found = []
    end_of_all = _saved_at(attempt)
    for path in sorted((attempt / "records").glob("*.rec"))[:_MOST_RECORDS]:
        try:
            record = Record(path)
            process = process_from_record(record)
        except (OSError, ValueError):
            continue
        slots = record.slots()
        threads = tuple(
            msgspec.structs.replace(thread, stable_for=max(0.0, end_of_all - slot.time))
            for thread, slot in zip(process.threads, slots, strict=False)
        )
        logs = sorted((attempt / "logs").glob(f"*-rank{process.rank}.stderr"))[:1]
        end = Exit(signal=9, killed_by_launcher=True) if process.exit_note is None else Exit()
        found.append(msgspec.structs.replace(process, state="gone", exit=end, threads=threads, log_tail=log_tail(logs)))
    ranks = [process for process in found if process.initialized != "no"]
    return ranks or found


def _run_file(path: Path) -> _RunFile:
    try:
        if not path.is_file() or path.stat().st_size > _MOST_RUN_FILE:
            return _RunFile()
        return msgspec.json.decode(path.read_bytes(), type=_RunFile)
    except (OSError, msgspec.DecodeError, RecursionError):
        return _RunFile()


def _sources(processes: list[Process]) -> dict[str, str]:
    """The text of the files that the threads stand in, if they are still where they were."""
    names = {
        site.file
        for process in processes
        for thread in process.threads
        for site in (thread.phase_site, thread.wait.site if thread.wait else None)
        if site is not None
    }
    sources = {}
    for name in sorted(names)[:64]:
        try:
            path = Path(name)
            if path.suffix == ".py" and path.is_file() and path.stat().st_size < 256 * 1024:
                sources[name] = path.read_text("utf-8", "replace")
        except (OSError, ValueError):
            continue
    return sources
