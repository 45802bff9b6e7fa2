"""Starts the ranks of a scenario, has their dumps written, and ends them."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from .scenario import Look, Scenario

TESTS = Path(__file__).resolve().parents[2]
_START_S, _WRITE_S, _END_S = 90.0, 60.0, 60.0
_QUIET_S = 1.0  # so long no rank has used CPU time to speak of: they stand still
_OLD_ENOUGH_S = 1.8  # the last operation must have been so long ago, or a dump does not show that nothing moves
_BUSY = 0.03  # of a core, for each rank
_BETWEEN_MOMENTS_S = (0.2, 1.5)


class JobFailed(Exception):
    """The job did not do what its scenario says."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class RealJob:
    """The processes of one scenario in `folder`; use it as a context manager: all are gone afterwards."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario, self.folder = scenario, folder
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "signs").mkdir(parents=True)
        (folder / "logs").mkdir()
        self.ranks: list[subprocess.Popen[bytes]] = []
        self.stopped: set[int] = set()

    def __enter__(self) -> RealJob:
        port = free_port()
        try:
            for rank in range(self.scenario.ranks):
                self.ranks.append(self._start(rank, port))
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, rank: int, port: int) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(self.scenario.ranks), "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS),
            **self.scenario.settings,
        }  # fmt: skip
        command = [sys.executable, "-m", "dumps.real.in_rank", self.scenario.name, str(self.folder)]
        with open(self.folder / "logs" / f"rank{rank}.log", "wb") as log:
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def __exit__(self, *_: object) -> None:
        self.tell("over")  # from here on a rank that loses the others writes nothing more
        for process in self.ranks:
            # Its session holds the DataLoader workers too; the leader is not reaped yet, so the number is still its.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def look(self, look: Look) -> None:
        """Have this look's dumps written by every rank that lives, and their stacks taken from outside."""
        for rank in look.stop:
            os.kill(self.ranks[rank].pid, signal.SIGSTOP)
            self.stopped.add(rank)
        asked = [rank for rank, _ in self._alive() if rank not in self.stopped and rank not in look.mute]
        for at, rank in enumerate(asked):
            if at and look.apart:
                time.sleep(look.apart)
            self.tell(f"look-{look.name}-{rank}")
        self._until(lambda: all(self.told(f"written-{look.name}-{r}") or self._ended(r) for r in asked), _WRITE_S,
                    f"not all of {asked} wrote {look.name}")  # fmt: skip
        folder = self.folder / look.name / "py-spy"
        folder.mkdir(parents=True, exist_ok=True)
        for rank, process in self._alive():
            # Without the right to look into other processes it fails; the dumps do not need it.
            answer = subprocess.run(
                ["py-spy", "dump", "--nonblocking", "--pid", str(process.pid)], capture_output=True, check=False,
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            )  # fmt: skip
            if answer.returncode == 0:
                (folder / f"rank_{rank}.txt").write_bytes(answer.stdout)

    def until_begun(self) -> None:
        self._until(lambda: all(self.told(f"begun-{r}") or self._ended(r) for r in range(len(self.ranks))), _START_S,
                    "not all ranks began")  # fmt: skip

    def until_still(self) -> None:
        """Return when no rank has moved for a while, or has ended."""
        quiet_since, used = time.monotonic(), self._cpu_seconds()

        def still() -> bool:
            nonlocal quiet_since, used
            now = self._cpu_seconds()
            if now - used > _BUSY * len(self.ranks) * _QUIET_S:
                quiet_since, used = time.monotonic(), now
            return time.monotonic() - quiet_since > _QUIET_S + _OLD_ENOUGH_S

        self._until(still, _START_S, "the ranks never stood still")

    def until_failed(self) -> None:
        """Return when an exception has reached a rank, and what it writes then is written."""
        self._until(lambda: any(self.told(f"failed-{rank}") for rank in range(len(self.ranks))), _START_S,
                    "no rank got an exception")  # fmt: skip

    def until_finished(self) -> None:
        self._until(lambda: all(self.told(f"finished-{r}") or self._ended(r) for r in range(len(self.ranks))), _START_S,
                    "not all ranks finished")  # fmt: skip

    def end(self) -> list[int]:
        """Let the ranks end by themselves; their exit codes."""
        self.tell("go")
        self._until(lambda: all(self._ended(rank) for rank in range(len(self.ranks))), _END_S, "not all ranks ended")
        return [process.wait() for process in self.ranks]

    def tell(self, name: str) -> None:
        (self.folder / "signs" / name).touch()

    def told(self, name: str) -> bool:
        return (self.folder / "signs" / name).exists()

    def log(self, rank: int) -> str:
        return (self.folder / "logs" / f"rank{rank}.log").read_text(errors="replace")

    def _alive(self) -> list[tuple[int, subprocess.Popen[bytes]]]:
        return [(rank, process) for rank, process in enumerate(self.ranks) if not self._ended(rank)]

    def _ended(self, rank: int) -> bool:
        """Looks without reaping, so that its number stays its own until the end."""
        pid = self.ranks[rank].pid
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _cpu_seconds(self) -> float:
        total = 0.0
        mute = {rank for look in self.scenario.looks for rank in look.mute}
        for rank, process in enumerate(self.ranks):
            if rank in mute:
                continue
            try:
                times = psutil.Process(process.pid).cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system
        return total

    def _until(self, true: Callable[[], bool], limit: float, otherwise: str) -> None:
        end = time.monotonic() + limit
        while not true():
            if time.monotonic() > end:
                logs = "\n".join(f"--- rank {rank}\n{self.log(rank)[-1500:]}" for rank in range(len(self.ranks)))
                raise JobFailed(f"{self.scenario.name}: {otherwise} within {limit:.0f} s\n{logs}")
            time.sleep(0.05)


def run_scenario(scenario: Scenario, folder: Path, seed: int = 0) -> None:
    """Run it once in `folder`, with all its looks. Raises JobFailed when the job does something else."""
    chance = random.Random(f"{scenario.name} {seed}")
    with RealJob(scenario, folder) as job:
        job.until_begun()
        for look in scenario.looks:
            if look.name == "error":
                job.until_failed()
                continue
            if look.moment:
                time.sleep(chance.uniform(*_BETWEEN_MOMENTS_S))
            elif scenario.healthy:
                job.until_finished()
            else:
                job.until_still()
            job.look(look)
        codes = job.end() if scenario.healthy else []
        if any(codes):
            raise JobFailed(f"{scenario.name}: a healthy job ended with {codes}\n{job.log(0)[-3000:]}")
