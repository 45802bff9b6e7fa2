"""Whatever kills the launcher, nothing of the job stays; and nothing of ours stays after an ordinary end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from launching import Launching, wait_until

from rankcall.launch.guard import Guard

# A launcher as small as can be: starts a guard and children, says their pids, and waits.
SMALL_LAUNCHER = """
import os, subprocess, sys, time
from rankcall.launch.guard import Guard
guard = Guard("test")
environment = {**os.environ, **guard.rank_environment()}
for command in sys.argv[1:]:
    process = subprocess.Popen(["bash", "-c", command], start_new_session=True, env=environment)
    guard.rank_started(process.pid)
print("ready", guard.pid, flush=True)
line = sys.stdin.readline()
if line == "bye\\n":
    guard.goodbye()
"""


def launcher(folder: Path, *commands: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    process = subprocess.Popen(
        [sys.executable, "-c", SMALL_LAUNCHER, *commands],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    word, pid = process.stdout.readline().split()
    assert word == "ready"
    return process, psutil.Process(int(pid))


def test_after_goodbye_the_guard_leaves_and_touches_nothing(launching: Launching) -> None:
    process, guard = launcher(launching.folder, "sleep 60")
    assert process.stdin is not None
    process.stdin.write("bye\n")
    process.stdin.flush()
    process.wait(10)
    wait_until(lambda: not guard.is_running(), 5)
    assert len(launching.processes()) == 1  # the sleep


@pytest.mark.parametrize(
    "command",
    [
        "exec sleep 60",
        "sleep 60 & sleep 61 & wait",
        "trap '' TERM; sleep 60; sleep 60",  # does not listen to SIGTERM
        "setsid sleep 60 & sleep 61",  # leaves the session
        "sleep 60 & exit 0",  # the leader is gone, its child is not
        "kill -STOP $$",  # stopped: sees no SIGTERM
        "exec env -i sleep 60",  # has dropped the mark
    ],
)
def test_after_sigkill_of_the_launcher_nothing_stays(launching: Launching, command: str) -> None:
    process, guard = launcher(launching.folder, command)
    wait_until(lambda: len(launching.processes()) > 1, 5)
    process.kill()
    process.wait()
    wait_until(lambda: not launching.processes(), 8)
    wait_until(lambda: not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE, 8)


def test_the_guard_ignores_the_signals_of_a_terminal_and_a_scheduler(launching: Launching) -> None:
    process, guard = launcher(launching.folder, "sleep 60")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
        guard.send_signal(number)
    process.kill()
    process.wait()
    wait_until(lambda: not launching.processes(), 8)


def test_the_guard_never_ends_a_stranger_with_a_reused_pid(launching: Launching) -> None:
    """It is told of a pid with another start time than the process has now."""
    stranger = subprocess.Popen(["sleep", "60"], cwd=launching.folder, start_new_session=True)
    program = Path(sys.modules[Guard.__module__].__file__ or "").with_name("guard_process.py")
    guard = subprocess.Popen([sys.executable, "-I", "-S", str(program), "NO_MARK=none"], stdin=subprocess.PIPE)
    guard.communicate(f"rank {stranger.pid} 1\n".encode(), timeout=10)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_the_guard_holds_no_stream_of_the_launcher_open(tmp_path: Path) -> None:
    guard = Guard("test")
    assert guard.pid is not None
    wait_until(lambda: len(os.listdir(f"/proc/{guard.pid}/fd")) >= 3, 5)
    held = {os.readlink(f"/proc/{guard.pid}/fd/{number}") for number in (1, 2)}
    assert held == {os.devnull}
    assert os.readlink(f"/proc/{guard.pid}/cwd") == "/"
    pid = guard.pid
    guard.goodbye()
    assert not psutil.pid_exists(pid)


def test_a_guard_that_died_is_no_trouble() -> None:
    guard = Guard("test")
    assert guard.pid is not None
    os.kill(guard.pid, signal.SIGKILL)
    wait_until(lambda: not guard.running, 5)
    guard.rank_started(os.getpid())
    guard.rank_ended(os.getpid())
    guard.goodbye()
