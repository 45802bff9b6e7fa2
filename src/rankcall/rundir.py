"""The run folder: where one run keeps its records, stacks, dumps, logs, snapshot and report.

    RUN_DIR/run.json                      who started what, where and when
    RUN_DIR/attempt-N/{records,stacks,dumps,logs}
    RUN_DIR/snapshot.json, report.json

Private to the user (0700), never shared by two runs. Writing never raises once the job runs: a full or slow disk
must not hurt the job, so the writers answer whether they could.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rankcall import __version__
from rankcall.errors import RankcallError

RUN_SCHEMA = "rankcall.run/1"
DEFAULT_PARENT = "rankcall-runs"
PARTS = ("records", "stacks", "dumps", "logs")


class RunFolder:
    """One run's folder. `id` is unique to the run and names its node-local record folder too."""

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self.id = run_id
        self.troubles: list[str] = []

    def attempt(self, number: int) -> Path:
        """The folder of one attempt, made with its parts if it can be."""
        folder = self.path / f"attempt-{number}"
        for part in PARTS:
            try:
                (folder / part).mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                self._trouble(f"cannot make {folder / part}: {error.strerror}")
        return folder

    def write(self, name: str, data: bytes) -> bool:
        """Write a file of the folder in one step: readers see the old one or the new one, never half of it."""
        target = self.path / name
        scratch = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            scratch.write_bytes(data)
            os.replace(scratch, target)
        except OSError as error:
            self._trouble(f"cannot write {target}: {error.strerror}")
            with contextlib.suppress(OSError):
                scratch.unlink()
            return False
        return True

    def write_run(self, facts: Mapping[str, object]) -> bool:
        """run.json: the facts beside the schema, the id and the tool's version."""
        document = {"schema": RUN_SCHEMA, "id": self.id, "version": __version__, **facts}
        return self.write("run.json", json.dumps(document, indent=2).encode() + b"\n")

    def write_snapshot(self, data: bytes) -> bool:
        return self.write("snapshot.json", data)

    def write_report(self, data: bytes) -> bool:
        return self.write("report.json", data)

    def _trouble(self, text: str) -> None:
        if text not in self.troubles and len(self.troubles) < 20:
            self.troubles.append(text)


def create_run_folder(path: str | None, script: str, command: Sequence[str]) -> RunFolder:
    """Make the folder of a new run.

    `path` None: a fresh folder under ./rankcall-runs, named after the time and the script. Raises RankcallError if
    it cannot be made or written, or already holds something (two runs never share a folder).
    """
    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    if path is None:
        word = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(script).stem).strip("-")[:40] or "job"
        target = Path(DEFAULT_PARENT) / f"{run_id[:15]}-{word}-{run_id[16:]}"
    else:
        target = Path(path)
    target = target.absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.mkdir(mode=0o700)
        except FileExistsError:
            _take_empty(target)
        folder = RunFolder(target, run_id)
        (target / "run.json").write_text(
            json.dumps({"schema": RUN_SCHEMA, "id": run_id, "version": __version__, "command": list(command)}) + "\n"
        )
    except OSError as error:
        raise RankcallError(
            f"cannot use {target} as the run folder: {error.strerror or error}. "
            "Name one that can be written with --run-dir DIR."
        ) from error
    return folder


def _take_empty(target: Path) -> None:
    if not target.is_dir():
        raise RankcallError(f"--run-dir {target} is a file; name a folder that is new or empty.")
    if any(target.iterdir()):
        raise RankcallError(
            f"--run-dir {target} already holds something; two runs never share a folder. Name one that is new or empty."
        )
    target.chmod(0o700)


def local_memory_folder(run_id: str) -> Path:
    """Make the node-local folder for the records of a run: in memory where there is such a place.

    Its name is `rankcall-UID-ID`. Raises RankcallError if none of /dev/shm, /run/user and TMPDIR takes it.
    """
    tried = []
    for parent in memory_parents():
        folder = parent / f"rankcall-{os.getuid()}-{run_id}"
        try:
            folder.mkdir(mode=0o700)
            if shutil.disk_usage(folder).free < 1 << 20:
                folder.rmdir()
                tried.append(f"{parent} (full)")
                continue
            return folder
        except OSError as error:
            tried.append(f"{parent} ({error.strerror})")
    raise RankcallError("no place for the ranks' records; tried " + ", ".join(tried) + ".")


def memory_parents() -> list[Path]:
    """Where records may lie, best first: /dev/shm, /run/user/UID, /run, TMPDIR."""
    places = ["/dev/shm", f"/run/user/{os.getuid()}", "/run", os.environ.get("TMPDIR") or "/tmp"]
    return [Path(place) for place in places if Path(place).is_dir()]
