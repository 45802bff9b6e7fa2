"""`rankcall run` with a watcher that writes down what it is told. Run as a process by the tests.

FAKE_WATCHER_CALLS names the file. FAKE_WATCHER_STOP=SECONDS has it ask for a stop (FAKE_WATCHER_STOP_COMMAND in
the `--` form), FAKE_WATCHER_FAULT=1 has each of its methods raise. PLANTED_FAULT=Class.method,… has these raise.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from rankcall.findings import Report, report_to_json
from rankcall.launch import main
from rankcall.snapshot import Snapshot


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


class FakeWatcher:
    def __init__(self, folder, *, command, stall_after, on_report, on_stop, on_status) -> None:
        self.folder, self.on_stop = folder, on_stop
        self.pids: dict[int, int] = {}
        self.lock = threading.Lock()

    def note(self, name: str, **facts: object) -> None:
        with self.lock, open(os.environ["FAKE_WATCHER_CALLS"], "a") as file:
            living = sorted(rank for pid, rank in self.pids.items() if alive(pid))
            file.write(json.dumps({"call": name, "living": living, **facts}, default=str) + "\n")
        if os.environ.get("FAKE_WATCHER_FAULT"):
            raise RuntimeError(f"planted in {name}")

    def rank_environment(self) -> dict[str, str]:
        return {"RANKCALL_TEST": "from the watcher"}

    def start(self) -> None:
        self.note("start")

    def ranks_started(self, attempt, ranks, world_size) -> None:
        self.pids = {started.pid: rank for rank, started in ranks.items()}
        if os.environ.get("FAKE_WATCHER_STOP"):
            threading.Timer(float(os.environ["FAKE_WATCHER_STOP"]), self.on_stop, [Report(verb="run")]).start()
        locals_ = {rank: started.local_rank for rank, started in ranks.items()}
        self.note("ranks_started", attempt=attempt, locals=locals_, world_size=world_size)

    def join(self, store, node, nodes) -> None:
        self.note("join", node=node, nodes=nodes)

    def process_exited(self, pid, *, code, signal, killed_by_launcher=False) -> None:
        self.note("process_exited", rank=self.pids.get(pid), code=code, signal=signal, killed=killed_by_launcher)

    def command_started(self, pid) -> None:
        self.pids = {pid: -1}
        if os.environ.get("FAKE_WATCHER_STOP_COMMAND"):
            seconds = float(os.environ["FAKE_WATCHER_STOP_COMMAND"])
            threading.Timer(seconds, self.on_stop, [Report(verb="run")]).start()
        self.note("command_started")

    def log_paths(self, rank, paths) -> None:
        self.note("log_paths", rank=rank, paths=[str(path) for path in paths])

    def collect(self, reason, budget_s):
        time.sleep(budget_s / 2)
        self.note("collect", reason=reason)
        return Snapshot(taken_at=0.0)

    def launcher_failed(self, error) -> None:
        self.note("launcher_failed", type=type(error).__name__, message=str(error))

    def finish(self, outcome, exit_code):
        report = Report(verb="run", outcome=outcome)
        self.folder.write_report(report_to_json(report))
        self.note("finish", outcome=outcome, exit_code=exit_code)
        return report


def plant(places: str) -> None:
    """Have methods of the launcher raise."""
    from rankcall.launch import console, exits, guard, job, outputs, streams, tracebacks, voice

    for place in filter(None, places.split(",")):
        class_name, method = place.split(".")
        modules = (console, exits, guard, job, outputs, streams, tracebacks, voice)
        owner = next(getattr(module, class_name) for module in modules if hasattr(module, class_name))

        def fail(*_: object, place: str = place, **__: object) -> None:
            raise RuntimeError(f"planted in {place}")

        assert hasattr(owner, method)
        setattr(owner, method, fail)


if __name__ == "__main__":
    plant(os.environ.get("PLANTED_FAULT", ""))
    sys.exit(main(sys.argv[1:], make_watcher=FakeWatcher))
