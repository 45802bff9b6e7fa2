"""Reads what `rankcall run` left behind: a run folder, or one of its files. It judges nothing."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rankcall.diagnose.readers.salvage import snapshot_from_records
from rankcall.errors import RankcallError
from rankcall.findings import REPORT_SCHEMA, Report, report_from_json
from rankcall.snapshot import SNAPSHOT_SCHEMA, Snapshot, snapshot_from_json

RUN_FILE, SNAPSHOT_FILE, REPORT_FILE = "run.json", "snapshot.json", "report.json"

# 4,096 ranks with full rings are below this; a file that is larger was not written by rankcall.
LARGEST_FILE = 2 * 1024**3
_SNIFFED = 4096


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was found. At least one of `snapshot` and `report` is there; `path` is the file or folder read."""

    path: Path
    snapshot: Snapshot | None
    report: Report | None


class _Schema(msgspec.Struct):
    schema: str = ""


def read_recorded(path: Path) -> Recorded:
    """Read a run folder, a snapshot file or a report file.

    Raises RankcallError, in one sentence, for what does not exist, may not be read, is empty, cut off, of a newer
    schema, or no work of rankcall's.
    """
    try:
        is_folder = path.is_dir()
        if not is_folder and not path.exists():
            raise RankcallError(f"{_named(path)} does not exist; expected the folder of a run, or a snapshot.json.")
        return _read_folder(path) if is_folder else _read_file(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    except RecursionError as error:
        raise RankcallError(f"{_named(path)} is nested deeper than anything rankcall writes.") from error


def looks_recorded(path: Path) -> bool:
    """True for what only rankcall writes, or what cannot be looked at (then `read_recorded` says why): a run's
    folder, a folder of runs, a snapshot or a report."""
    try:
        if path.is_dir():
            names = _names(path)
            ours = {RUN_FILE, SNAPSHOT_FILE, REPORT_FILE} & names
            return bool(ours) or not names or any(_holds_run(path / name) for name in names)
        if not path.is_file():
            return True
        with open(path, "rb") as file:
            start = file.read(_SNIFFED)
    except (OSError, RankcallError):
        return True
    written_by_us = start.lstrip()[:1] == b"{" and b'"rankcall.' in start
    return written_by_us or (path.suffix == ".json" and not _is_dump_or_stack(start))


def _holds_run(folder: Path) -> bool:
    try:
        return (folder / RUN_FILE).is_file()
    except OSError:
        return False


def _is_dump_or_stack(start: bytes) -> bool:
    return any(mark in start for mark in (b'"entries"', b'"pg_config"', b'"pg_status"', b'"frames"', b'"thread'))


def is_unfinished(path: Path) -> bool:
    """True for the folder of a run that has written no snapshot yet."""
    try:
        return (path / RUN_FILE).is_file() and not (path / SNAPSHOT_FILE).exists()
    except OSError:
        return False


def _read_folder(folder: Path) -> Recorded:
    names = _names(folder)
    snapshot_file, report_file = folder / SNAPSHOT_FILE, folder / REPORT_FILE
    if SNAPSHOT_FILE not in names:
        if REPORT_FILE in names:
            return Recorded(folder, None, report_from_json(_bytes(report_file), str(report_file)))
        saved = snapshot_from_records(folder) if RUN_FILE in names else None
        if saved is not None:
            return Recorded(folder, saved, None)
        raise RankcallError(_nothing_to_read(folder, names))
    try:
        snapshot = snapshot_from_json(_bytes(snapshot_file), str(snapshot_file))
    except RankcallError as error:
        if REPORT_FILE in names:
            raise RankcallError(f"{error} The verdict of that time may be in {report_file}.") from error
        raise
    return Recorded(folder, snapshot, _report_beside(report_file) if REPORT_FILE in names else None)


def _report_beside(path: Path) -> Report | None:
    """What was said while the job ran. The snapshot is there to be judged without it."""
    try:
        return report_from_json(_bytes(path), str(path))
    except (RankcallError, RecursionError):
        return None


def _names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise _unreadable(folder, error) from error


def _nothing_to_read(folder: Path, names: frozenset[str]) -> str:
    if not names:
        return f"{folder} is empty; expected the folder of a run (rankcall run makes it)."
    if RUN_FILE in names:
        return (
            f"{folder} has no {SNAPSHOT_FILE}: the run is still going on, or was killed before it could write one. "
            "For a job now running on this machine: rankcall why."
        )
    runs = sorted(name for name in names if (folder / name / RUN_FILE).is_file())
    if runs:
        return f"{folder} holds {len(runs)} runs; name one of them, the newest is {folder / runs[-1]}."
    return f"{folder} is not the folder of a run: it has neither {RUN_FILE} nor {SNAPSHOT_FILE}."


def _read_file(path: Path) -> Recorded:
    data = _bytes(path)
    try:
        schema = msgspec.json.decode(data, type=_Schema).schema
    except msgspec.DecodeError:
        schema = ""
    if schema.startswith(REPORT_SCHEMA.rpartition("/")[0] + "/"):
        return Recorded(path, None, report_from_json(data, str(path)))
    if schema or path.suffix == ".json":
        return Recorded(path, snapshot_from_json(data, str(path)), None)
    raise RankcallError(
        f"{path} is neither the folder of a run nor a file of schema {SNAPSHOT_SCHEMA} or {REPORT_SCHEMA}."
    )


def _bytes(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise RankcallError(f"{path} is no regular file.")
        if path.stat().st_size > LARGEST_FILE:
            raise RankcallError(f"{path} is larger than 2 GiB; rankcall writes no such file.")
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _named(path: Path) -> str:
    """The path, with an ellipsis in it where it would fill the screen."""
    text = str(path)
    return text if len(text) <= 300 else f"{text[:100]}… {text[-100:]}"


def _unreadable(path: Path, error: OSError) -> RankcallError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return RankcallError(
            f"{_named(path)} may not be read by you: {error.strerror}; run folders are private (0700)."
        )
    return RankcallError(f"{_named(path)} cannot be read: {error.strerror or error}.")
