"""Starts `rankcall run` as a process of its own, and looks at what it leaves. Not a test itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

MAIN = "import sys; from rankcall.launch import main; sys.exit(main(sys.argv[1:]))"
FAKE_MAIN = Path(__file__).with_name("run_with_fake_watcher.py")


@dataclass
class Finished:
    code: int
    out: bytes
    err: str
    run_dir: Path

    def log(self, rank: int, kind: str, attempt: int = 0) -> bytes:
        (path,) = (self.run_dir / f"attempt-{attempt}" / "logs").glob(f"*-rank{rank}.{kind}")
        return path.read_bytes()

    def calls(self) -> list[dict[str, object]]:
        """What the fake watcher was told, in order."""
        lines = (self.run_dir.parent / "calls.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


class Launching:
    """Runs scripts in one folder; `run_dir` is the folder of the latest run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.fake = False
        self.before = ""  # Python that the launcher's process runs first
        self.environment: dict[str, str] = {}

    def script(self, text: str, name: str = "train.py") -> str:
        (self.folder / name).write_text(textwrap.dedent(text))
        return name

    def command(self, argv: Sequence[str]) -> list[str]:
        head = [str(FAKE_MAIN)] if self.fake else ["-c", f"{self.before}\n{MAIN}"]
        return [sys.executable, *head, "--run-dir", str(self.run_dir), *argv]

    def start(self, *argv: str, **settings: object) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.environment}
        environment["FAKE_WATCHER_CALLS"] = str(self.folder / "calls.jsonl")
        given: dict[str, object] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
            **settings,
        }
        return subprocess.Popen(self.command(argv), cwd=self.folder, env=environment, **given)  # type: ignore[call-overload, no-any-return]

    def run(self, *argv: str, limit: float = 90.0, **settings: object) -> Finished:
        return self.end(self.start(*argv, **settings), limit)

    def end(self, process: subprocess.Popen[bytes], limit: float = 90.0) -> Finished:
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            time.sleep(2)
            process.kill()
            raise
        return Finished(process.returncode, out, (err or b"").decode(errors="replace"), self.run_dir)

    def processes(self) -> list[psutil.Process]:
        """Every process that works in our folder, the launcher among them."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(self.folder):
                    found.append(process)
            except psutil.Error:
                continue
        return found


def wait_until(condition: Callable[[], object], limit: float = 30.0) -> None:
    """Fails the test if it does not become true in time."""
    until = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
