"""Several nodes and killed launchers: real torch ranks under real launchers on one machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

HANG = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(20):
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() == 3 and step == 10:
        time.sleep(1000)
"""
CRASH = HANG.replace("time.sleep(1000)", "raise ValueError('bad batch')")


def launch(folder: Path, name: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rankcall", "run", "--run-dir", str(folder / name), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / f"{name}.err").open("wb") as err:
        return subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=err)  # fmt: skip


def two_nodes(folder: Path, script: str) -> tuple[list[int], list[dict[str, object]]]:
    """Run a script as two nodes of two ranks; the launchers' exit codes and reports."""
    (folder / "train.py").write_text(script)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port), "--nproc-per-node", "2"]
    options = ["--stall-after", "5", "--on-hang", "stop", *meeting]
    nodes = [launch(folder, f"node{node}", *options, "--node-rank", str(node), "train.py") for node in range(2)]
    try:
        codes = [node.wait(timeout=150) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    return codes, [json.loads((folder / f"node{node}" / "report.json").read_text()) for node in range(2)]


def test_both_nodes_name_the_rank_that_hangs_on_one_of_them(tmp_path: Path) -> None:
    codes, reports = two_nodes(tmp_path, HANG)
    assert codes == [124, 124]
    for report in reports:
        verdict = report["verdict"]
        assert isinstance(verdict, dict)
        assert (verdict["pitfall"], verdict["culprits"], verdict["where"]["line"]) == ("process-stuck", [3], 10)
        assert sorted(verdict["waiting"]) == [0, 1, 2]


def test_a_node_names_the_rank_that_raised_on_the_other(tmp_path: Path) -> None:
    codes, reports = two_nodes(tmp_path, CRASH)
    assert codes == [1, 1]
    for report in reports:
        verdict = report["verdict"]
        assert isinstance(verdict, dict)
        assert (verdict["pitfall"], verdict["culprits"]) == ("program-error", [3])


def test_why_reads_what_is_left_of_a_run_whose_launcher_was_killed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HANG.replace("== 3", "== 1"))
    launcher = launch(tmp_path, "run", "--nproc-per-node", "2", "train.py")
    try:
        memory = _memory_of(launcher, 60)
        time.sleep(1)
        launcher.kill()
        launcher.wait()
        for _ in range(100):
            if not memory.exists():
                break
            time.sleep(0.1)
        assert not memory.exists(), "the guard gives the memory back"
        assert len(list((tmp_path / "run" / "attempt-0" / "records").glob("*.rec"))) == 2
        said = subprocess.run([sys.executable, "-m", "rankcall", "why", str(tmp_path / "run"), "--format", "json"],
                              capture_output=True, check=False, timeout=60)  # fmt: skip
        report = json.loads(said.stdout)
        assert {row["rank"]: row["state"] for row in report["ranks"]}[0] == "waiting"
        assert report["verdict"]["culprits"] == [1]
    finally:
        launcher.kill()
        launcher.wait()


def _memory_of(launcher: subprocess.Popen[bytes], limit: float) -> Path:
    """The record folder of a launcher, once two ranks have come to their eleventh step."""
    from rankcall.diagnose.readers.records import Record

    end = time.monotonic() + limit
    while time.monotonic() < end:
        for mark in Path("/dev/shm").glob(f"rankcall-{os.getuid()}-*/run.mark"):
            if json.loads(mark.read_text())["launcher"] != launcher.pid:
                continue
            records = [Record(path) for path in mark.parent.glob("*.rec")]
            if len(records) == 2 and all(record.counter("events") >= 12 for record in records):
                return mark.parent
        assert psutil.pid_exists(launcher.pid)
        time.sleep(0.2)
    raise AssertionError("the ranks did not get going")


def test_ranks_that_cannot_be_recorded_are_judged_by_their_stacks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HANG.replace("== 3", "== 1"))
    wrapper = tmp_path / "isolated.sh"
    wrapper.write_text(f"#!/bin/sh\nexec {sys.executable} -I train.py\n")
    wrapper.chmod(0o755)
    options = ["--stall-after", "4", "--on-hang", "stop", "--no-python", "--nproc-per-node", "2"]
    launcher = launch(tmp_path, "run", *options, "./isolated.sh")
    try:
        assert launcher.wait(timeout=120) == 124
    finally:
        launcher.kill()
        launcher.wait()
    said = (tmp_path / "run.err").read_text()
    assert "not recorded: ranks 0, 1" in said
    verdict = json.loads((tmp_path / "run" / "report.json").read_text())["verdict"]
    assert (verdict["pitfall"], verdict["culprits"], verdict["where"]["line"]) == ("process-stuck", [1], 10)


def test_a_verdict_is_withdrawn_when_the_job_moves_on(tmp_path: Path) -> None:
    late = HANG.replace("== 3", "== 1").replace("time.sleep(1000)", "time.sleep(9)").replace("range(20)", "range(40)")
    (tmp_path / "train.py").write_text(late.replace("    dist.all_reduce", "    time.sleep(0.1)\n    dist.all_reduce"))
    launcher = launch(tmp_path, "run", "--stall-after", "4", "--nproc-per-node", "2", "train.py")
    try:
        assert launcher.wait(timeout=120) == 0
    finally:
        launcher.kill()
        launcher.wait()
    said = (tmp_path / "run.err").read_text()
    assert "process-stuck" in said and "the verdict above is withdrawn" in said
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["outcome"], report["verdict"]) == ("completed", None)
    (incident,) = report["incidents"]
    assert incident["verdict"]["culprits"] == [1]
    assert incident["withdrawn_at"] - incident["at"] < 7, "when the job moves on, not at its end"
