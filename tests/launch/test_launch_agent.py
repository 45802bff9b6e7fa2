"""What the launcher tells the watcher, and when: seen with a watcher that writes it down."""

from __future__ import annotations

import signal

import pytest
from launching import Launching, wait_until

pytestmark = pytest.mark.slow
pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def fake(launching: Launching) -> None:
    launching.fake = True


def names(calls: list[dict[str, object]]) -> list[object]:
    return [call["call"] for call in calls]


def test_a_healthy_job_is_told_of_and_prints_only_its_own(launching: Launching) -> None:
    script = launching.script(
        """
        import os, sys
        print("out", os.environ["RANK"], os.environ["RANKCALL_TEST"])
        print("err", os.environ["RANK"], file=sys.stderr)
        """
    )
    done = launching.run("--nproc-per-node", "2", script)
    assert done.code == 0
    assert sorted(done.out.decode().splitlines()) == ["out 0 from the watcher", "out 1 from the watcher"]
    assert sorted(done.err.splitlines()) == ["err 0", "err 1"]
    calls = done.calls()
    started = next(call for call in calls if call["call"] == "ranks_started")
    assert started["attempt"] == 0 and started["world_size"] == 2 and started["locals"] == {"0": 0, "1": 1}
    ends = [call for call in calls if call["call"] == "process_exited"]
    assert sorted((call["rank"], call["code"], call["killed"]) for call in ends) == [(0, 0, False), (1, 0, False)]
    assert calls[-1] == {"call": "finish", "living": [], "outcome": "completed", "exit_code": 0}
    assert "collect" not in names(calls)
    assert done.log(1, "stdout") == b"out 1 from the watcher\n" and done.log(1, "stderr") == b"err 1\n"
    assert not (done.run_dir / "torchrun").exists()


def test_evidence_is_taken_before_the_survivors_are_ended(launching: Launching) -> None:
    script = launching.script(
        """
        import os, sys, time
        if os.environ["RANK"] == "1":
            time.sleep(0.5)
            sys.exit(7)
        time.sleep(60)
        """
    )
    done = launching.run("--nproc-per-node", "3", script)
    assert done.code == 1
    calls = done.calls()
    collect = next(call for call in calls if call["call"] == "collect")
    assert collect["reason"] == "exit" and collect["living"] == [0, 2]
    ends = [call for call in calls if call["call"] == "process_exited"]
    first = ends[0]
    assert (first["rank"], first["code"], first["signal"], first["killed"]) == (1, 7, None, False)
    assert sorted((call["rank"], call["signal"], call["killed"]) for call in ends[1:]) == [
        (0, int(signal.SIGTERM), True),
        (2, int(signal.SIGTERM), True),
    ]
    assert names(calls).index("collect") < names(calls).index("finish")


def test_a_signal_is_told_as_a_signal(launching: Launching) -> None:
    script = launching.script(
        """
        import os, signal, time
        if os.environ["RANK"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        """
    )
    done = launching.run("--nproc-per-node", "2", script)
    first = next(call for call in done.calls() if call["call"] == "process_exited")
    assert (first["rank"], first["code"], first["signal"], first["killed"]) == (0, None, 9, False)


def test_an_elastic_restart_is_a_new_attempt_with_its_own_logs(launching: Launching) -> None:
    script = launching.script(
        """
        import os, sys, time
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        print("attempt", attempt, flush=True)
        print(os.environ["TORCH_FR_DUMP_TEMP_FILE"], file=sys.stderr)
        if attempt == 0:
            sys.exit(3) if os.environ["RANK"] == "1" else time.sleep(60)
        """
    )
    done = launching.run("--nproc-per-node", "2", "--max-restarts", "1", script)
    assert done.code == 0
    started = [call for call in done.calls() if call["call"] == "ranks_started"]
    assert [call["attempt"] for call in started] == [0, 1]
    for attempt in (0, 1):
        assert done.log(0, "stdout", attempt) == b"attempt %d\n" % attempt
        assert f"attempt-{attempt}/dumps/" in done.log(0, "stderr", attempt).decode()


def test_on_hang_stop_ends_the_job_with_124_and_without_restart(launching: Launching) -> None:
    launching.environment["FAKE_WATCHER_STOP"] = "1.0"
    script = launching.script("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    done = launching.run("--nproc-per-node", "2", "--max-restarts", "3", "--on-hang", "stop", script)
    assert done.code == 124
    assert done.calls()[-1]["outcome"] == "hung" and done.calls()[-1]["exit_code"] == 124
    assert names(done.calls()).count("ranks_started") == 1
    assert "exit code 124" in done.err
    assert not launching.processes()


def test_ctrl_c_collects_before_anything_is_ended(launching: Launching) -> None:
    script = launching.script("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    process = launching.start("--nproc-per-node", "2", script)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGINT)
    done = launching.end(process)
    assert done.code == 1
    collect = next(call for call in done.calls() if call["call"] == "collect")
    assert collect["reason"] == "interrupt" and collect["living"] == [0, 1]
    assert done.calls()[-1]["outcome"] == "stopped"
    assert "Traceback" not in done.err


def test_a_second_ctrl_c_ends_ranks_that_do_not_listen(launching: Launching) -> None:
    script = launching.script(
        """
        import signal, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("up", flush=True)
        time.sleep(60)
        """
    )
    process = launching.start("--nproc-per-node", "2", script)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGINT)
    wait_until(lambda: '"interrupt"' in (launching.folder / "calls.jsonl").read_text())
    process.send_signal(signal.SIGINT)
    done = launching.end(process, 10)
    assert done.code == 1 and not launching.processes()


def test_every_method_of_the_watcher_may_fail(launching: Launching) -> None:
    launching.environment["FAKE_WATCHER_FAULT"] = "1"
    script = launching.script("import os, sys\nprint('hello')\nsys.exit(5 if os.environ['RANK'] == '1' else 0)\n")
    done = launching.run("--nproc-per-node", "2", script)
    assert done.code == 1 and done.out == b"hello\nhello\n"
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "places",
    [
        "Job.begin_attempt,Job.attempt_environment,Job.ranks_started,Voice._report",
        "Outputs.open,Job.before_closing,Job.end_leftovers,Voice.at_end",
        "Job._ended,Stream._write,StderrFilter.feed,Guard.rank_started",
        "Console._show,StderrFilter.ended,Job._note_troubles",
        "Console._pass_time,TimedLog.add",
    ],
)
def test_faults_in_the_launchers_own_parts_change_nothing_for_the_job(launching: Launching, places: str) -> None:
    launching.environment["PLANTED_FAULT"] = places
    script = launching.script("import sys\nsys.stdout.write('hello\\n')\nsys.stderr.write('err\\n')\n")
    done = launching.run("--nproc-per-node", "2", script)
    assert done.code == 0 and done.out == b"hello\nhello\n" and done.err.splitlines()[:2] == ["err", "err"]


def test_a_port_in_use_is_told_as_the_launchers_own_failure(launching: Launching) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        script = launching.script("print('never')\n")
        done = launching.run("--nproc-per-node", "2", "--master-port", port, script)
    assert done.code == 1 and done.out == b""
    failed = next(call for call in done.calls() if call["call"] == "launcher_failed")
    assert port in str(failed["message"]) or "EADDRINUSE" in str(failed["message"])
    assert "torch's launcher failed" in done.err and "Traceback" not in done.err


def test_the_users_own_logs_are_left_to_the_user(launching: Launching) -> None:
    script = launching.script("import sys\nprint('out')\nprint('err', file=sys.stderr)\n")
    done = launching.run("--nproc-per-node", "2", "--log-dir", "logs", "-r", "0:1", "-t", "1:2", script)
    assert done.code == 0
    assert done.out == b"out\n"  # of rank 1; rank 0's goes to its file alone
    assert sorted(done.err.splitlines()) == ["[default1]:err", "err"]
    (redirected,) = (launching.folder / "logs").glob("*/attempt_0/0/stdout.log")
    assert redirected.read_text() == "out\n"
    paths = {call["rank"]: call["paths"] for call in done.calls() if call["call"] == "log_paths"}
    assert str(redirected) in str(paths[0]) and "rank0.stderr" in str(paths[0])


def test_ranks_kept_from_the_console_are_still_in_the_logs(launching: Launching) -> None:
    script = launching.script("import os\nprint('out', os.environ['RANK'])\n")
    done = launching.run("--nproc-per-node", "2", "--local-ranks-filter", "1", script)
    assert done.out == b"out 1\n" and done.log(0, "stdout") == b"out 0\n"


def test_a_script_run_in_torchs_own_process_is_seen_too(launching: Launching) -> None:
    name = launching.script("import os, sys\nprint('out', os.environ['RANK'])\nprint('err', file=sys.stderr)\n")
    done = launching.run("--nproc-per-node", "2", "--run-path", str(launching.folder / name))
    assert done.code == 0 and sorted(done.out.splitlines()) == [b"out 0", b"out 1"]
    assert done.log(0, "stdout") == b"out 0\n" and done.log(1, "stderr") == b"err\n"
