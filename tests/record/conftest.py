"""Runs small programs with the recording injected, without the launcher, and opens the records they leave."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rankcall.diagnose.readers.records import Record

ROOT = Path(__file__).resolve().parents[2]
INJECT = ROOT / "src" / "rankcall" / "record" / "inject"
PROGRAMS = Path(__file__).parent / "programs"


class Recording:
    """What one injected run left: its result and its records, by claimed rank."""

    def __init__(self, folder: Path, done: subprocess.CompletedProcess[str]) -> None:
        self.folder = folder
        self.done = done

    def records(self) -> list[Record]:
        found = [Record(path) for path in sorted(self.folder.glob("*.rec"))]
        return sorted(
            found,
            key=lambda record: (
                record.identity().get("claimed_rank") is None,
                record.identity().get("claimed_rank") or 0,
                record.pid,
            ),
        )


class Runner:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def environment(self, **extra: str) -> dict[str, str]:
        plain = {key: value for key, value in os.environ.items() if not key.startswith("RANKCALL")}
        return {
            **plain,
            "PYTHONPATH": str(INJECT),
            "RANKCALL_RECORDS": str(self.folder),
            "RANKCALL_DEBUG": "1",
            "OMP_NUM_THREADS": "1",
            **extra,
        }

    def python(self, *arguments: str, rank: int | None = 0, timeout: float = 60, **extra: str) -> Recording:
        """One Python process, as rank `rank` of a job of one."""
        variables = {} if rank is None else {"RANK": str(rank), "WORLD_SIZE": "1"}
        done = subprocess.run(
            [sys.executable, *arguments],
            env=self.environment(**variables, **extra),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Recording(self.folder, done)

    def job(self, ranks: int, script: Path, arguments: Sequence[str] = (), timeout: float = 90) -> Recording:
        """A real torchrun job."""
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(ranks),
            str(script),
            *arguments,
        ]
        done = subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=timeout, check=False
        )
        return Recording(self.folder, done)


@pytest.fixture
def runner() -> Iterator[Runner]:
    folder = Path(tempfile.mkdtemp(prefix="rankcall-test-", dir="/dev/shm"))
    yield Runner(folder)
    shutil.rmtree(folder, ignore_errors=True)
