"""Whole runs with real ranks and the real watcher: exit codes, the console, the run folder, and hostile cases."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time

import pytest
from launching import Launching, wait_until

pytestmark = pytest.mark.slow
pytest.importorskip("torch")

GLOO = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(1))
"""


def test_a_healthy_job_says_nothing_of_ours(launching: Launching) -> None:
    script = launching.script(GLOO + "print('rank', rank)\ndist.destroy_process_group()\n")
    done = launching.run("--nproc-per-node", "2", script)
    assert done.code == 0
    assert sorted(done.out.splitlines()) == [b"rank 0", b"rank 1"] and done.err == ""
    report = json.loads((done.run_dir / "report.json").read_text())
    assert report["outcome"] == "completed" and report["verdict"] is None
    run = json.loads((done.run_dir / "run.json").read_text())
    assert run["form"] == "torchrun" and "TORCH_NCCL_ASYNC_ERROR_HANDLING" in run["nccl_async_error_handling"]


def test_one_traceback_is_printed_and_the_verdict_names_its_rank(launching: Launching) -> None:
    script = launching.script(
        GLOO + "if rank == 1:\n    raise ValueError('bad shard')\ndist.all_reduce(torch.ones(1))\n"
    )
    done = launching.run("--nproc-per-node", "3", "--output", "copy.json", script)
    assert done.code == 1
    assert done.err.count("Traceback (most recent call last)") == 1
    assert "[rank1]: ValueError: bad shard" in done.err
    assert "ChildFailedError" not in done.err and "closing signal" not in done.err
    assert done.err.count("another rank left first") <= 2
    report = json.loads((done.run_dir / "report.json").read_text())
    assert report["outcome"] == "crashed"
    assert report["verdict"]["pitfall"] == "program-error" and report["verdict"]["culprits"] == [1]
    assert json.loads((launching.folder / "copy.json").read_text()) == report


def test_the_same_error_on_every_rank_is_printed_once(launching: Launching) -> None:
    script = launching.script(
        """
        import os, pathlib, time
        pathlib.Path("up" + os.environ["RANK"]).touch()
        while len(list(pathlib.Path().glob("up*"))) < 4:
            time.sleep(0.01)
        raise FileNotFoundError("no shard " + os.environ["RANK"])
        """
    )
    done = launching.run("--nproc-per-node", "4", script)
    assert done.code == 1
    assert done.err.count("Traceback (most recent call last)") == 1
    assert b"FileNotFoundError: no shard" in b"".join(done.log(rank, "stderr") for rank in range(4))


def test_json_is_the_only_thing_of_ours_when_asked_for(launching: Launching) -> None:
    script = launching.script("import sys\nprint('line', flush=True)\nsys.exit(3)\n")
    done = launching.run("--format", "json", "--", sys.executable, script)
    first, rest = done.out.split(b"\n", 1)
    assert done.code == 3 and first == b"line" and done.err == ""
    assert json.loads(rest)["schema"] == "rankcall.report/1"


def test_the_output_of_a_healthy_job_is_what_torchrun_prints(launching: Launching) -> None:
    """Also handled exceptions that every rank logs, progress bars, any bytes, and no newline at the end."""
    script = launching.script(
        r"""
        import os, sys, time, traceback
        for i in range(3):
            sys.stderr.write("\r%d%%" % (i * 10)); sys.stderr.flush(); time.sleep(0.05)
        sys.stderr.write("\n")
        for _ in range(2):
            try:
                raise RuntimeError("Connection closed by peer")
            except RuntimeError:
                traceback.print_exc()
        os.write(1, b"bytes \xff\x00\x1b[31m\n")
        os.system("echo from a shell > /dev/stderr; echo again > /dev/stdout")
        os.write(1, b"no newline")
        """
    )
    ours = launching.run("--nproc-per-node", "2", script)
    torchrun = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", script],
        cwd=launching.folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=60,
    )
    assert ours.code == torchrun.returncode == 0
    for rank in (0, 1):
        assert ours.log(rank, "stdout") == torchrun.stdout
        assert ours.log(rank, "stderr") == torchrun.stderr
    assert sorted(ours.out) == sorted(torchrun.stdout * 2)
    assert sorted(ours.err.encode()) == sorted(torchrun.stderr * 2)


def test_lines_of_many_ranks_are_never_torn(launching: Launching) -> None:
    script = launching.script("import os\nfor i in range(20000):\n    print('line', os.environ['RANK'], i, 'x' * 40)\n")
    done = launching.run("--nproc-per-node", "4", script)
    lines = done.out.splitlines()
    assert len(lines) == 80_000
    for rank in range(4):
        mine = [line for line in lines if line.startswith(b"line %d " % rank)]
        assert mine == done.log(rank, "stdout").splitlines() and len(mine) == 20_000


def test_a_started_line_is_shown_promptly(launching: Launching) -> None:
    script = launching.script("import sys, time\nsys.stdout.write('loading...')\nsys.stdout.flush()\ntime.sleep(30)\n")
    process = launching.start("--nproc-per-node", "1", script)
    assert process.stdout is not None and process.stdout.read(10) == b"loading..."
    process.send_signal(signal.SIGTERM)
    assert launching.end(process).code == 1


def test_a_line_of_300_megabytes_needs_little_memory_and_is_whole(launching: Launching) -> None:
    script = launching.script(
        "import os\nblock = b'x' * (1 << 20)\nfor _ in range(300):\n"
        "    view = memoryview(block)\n    while view:\n        view = view[os.write(1, view):]\n"
    )
    most = 0
    with open(os.devnull, "wb") as nowhere:
        process = launching.start("--", sys.executable, script, stdout=nowhere, stderr=nowhere)
        while process.poll() is None:
            with contextlib.suppress(OSError):
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
                most = max([most, *(int(found) for found in re.findall(r"VmHWM:\s+(\d+) kB", status))])
            time.sleep(0.01)
    assert process.returncode == 0
    assert 0 < most < 150 * 1024
    logs = launching.run_dir / "attempt-0" / "logs"
    assert next(logs.glob("*.stdout")).stat().st_size == 300 << 20
    for path in logs.iterdir():
        path.unlink()


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/proc/mounts"), reason="needs to mount a tiny disk")
def test_a_full_disk_under_the_run_folder_hurts_nobody(launching: Launching) -> None:
    disk = launching.folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        launching.run_dir = disk / "run"
        script = launching.script(GLOO + "for i in range(30000):\n    print('line', rank, i, 'x' * 40)\n")
        done = launching.run("--nproc-per-node", "2", script)
        assert done.code == 0
        assert len(done.out.splitlines()) == 60_000
        assert "bytes of the ranks' output are not in the log files" in done.err
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_console_that_nobody_reads_any_more_ends_nothing(launching: Launching) -> None:
    script = launching.script("for i in range(200000):\n    print('line', i)\nprint('last')\n")
    process = launching.start("--", sys.executable, script)
    assert process.stdout is not None and process.stdout.readline().startswith(b"line")
    process.stdout.close()
    process.wait(60)
    assert process.returncode == 0
    (raw,) = (launching.run_dir / "attempt-0" / "logs").glob("*.stdout")
    assert raw.read_bytes().endswith(b"last\n")


def test_a_paused_console_does_not_hold_up_the_ranks(launching: Launching) -> None:
    script = launching.script(
        "import pathlib\nfor i in range(200000):\n    print('line', i, 'x' * 40)\npathlib.Path('done').touch()\n"
    )
    process = launching.start("--", sys.executable, script)
    wait_until((launching.folder / "done").exists, 60)  # 10 MB printed, and nobody has read a byte
    assert len(launching.end(process).out.splitlines()) == 200_000


def test_closed_standard_streams_are_no_trouble(launching: Launching) -> None:
    script = launching.script("import pathlib\nprint('hello')\npathlib.Path('done').touch()\n")
    command = launching.command(["--", sys.executable, script])
    shell = ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash"]
    done = subprocess.run([*shell, *command], cwd=launching.folder, timeout=60, check=False)
    assert done.returncode == 0 and (launching.folder / "done").exists()


def test_sigkill_of_the_launcher_leaves_nothing(launching: Launching) -> None:
    script = launching.script(
        """
        import subprocess, time
        subprocess.Popen(["sleep", "300"])
        subprocess.Popen(["sleep", "301"], start_new_session=True)
        print("up", flush=True)
        time.sleep(300)
        """
    )
    process = launching.start("--nproc-per-node", "2", script)
    assert process.stdout is not None
    assert process.stdout.readline() + process.stdout.readline() == b"up\nup\n"
    wait_until(lambda: len(launching.processes()) == 1 + 2 * 3)
    process.kill()
    process.wait()
    wait_until(lambda: not launching.processes(), 8)


def test_what_a_pipe_reads_from_us_ends_with_us(launching: Launching) -> None:
    """`rankcall run … | tee` must come to its end although the script leaves something running."""
    script = launching.script(
        "import subprocess\nsubprocess.Popen(['sleep', '20'], start_new_session=True)\nprint('done')\n"
    )
    began = time.monotonic()
    done = launching.run("--nproc-per-node", "1", script, limit=20)
    assert done.code == 0 and done.out == b"done\n" and time.monotonic() - began < 15


def test_ctrl_c_shows_who_was_where(launching: Launching) -> None:
    script = launching.script(GLOO + "print('up', flush=True)\ntime.sleep(60 if rank == 1 else 0)\ndist.barrier()\n")
    process = launching.start("--nproc-per-node", "2", script)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    done = launching.end(process)
    assert done.code == 1
    assert "Roll call" in done.err and "SIGINT" in done.err
    assert "Traceback" not in done.err
    assert not launching.processes()


def test_two_jobs_at_once_do_not_meet(launching: Launching) -> None:
    script = launching.script(GLOO + "print('job', sys.argv[1], rank)\ndist.barrier()\n")
    processes = []
    for number in ("1", "2"):
        launching.run_dir = launching.folder / f"run{number}"
        processes.append(launching.start("--nproc-per-node", "2", script, number))
    done = [launching.end(process) for process in processes]
    assert [one.code for one in done] == [0, 0]
    assert sorted(done[0].out.splitlines()) == [b"job 1 0", b"job 1 1"]
    assert sorted(done[1].out.splitlines()) == [b"job 2 0", b"job 2 1"]


def test_a_run_folder_is_never_shared(launching: Launching) -> None:
    script = launching.script("print('hello')\n")
    launching.run_dir.mkdir()
    (launching.run_dir / "something").touch()
    done = launching.run("--nproc-per-node", "1", script)
    assert done.code == 2 and done.out == b""
    assert "already holds something" in done.err and len(done.err.splitlines()) == 1


def test_the_users_environment_is_not_overruled(launching: Launching) -> None:
    launching.environment = {"TORCH_FR_DUMP_TEMP_FILE": "/mine", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "PYTHONPATH": "/my"}
    launching.environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "3"
    script = launching.script(
        """
        import os
        names = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
        print([os.environ.get(name) for name in names], "/my" in os.environ["PYTHONPATH"].split(":"))
        """
    )
    done = launching.run("--nproc-per-node", "1", script)
    assert done.out == b"['/mine', '0', '3'] True\n"


def test_nohup_means_that_the_terminal_may_close(launching: Launching) -> None:
    script = launching.script("import time\nprint('up', flush=True)\ntime.sleep(2)\nprint('done')\n")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = launching.start("--", sys.executable, "-u", script)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGHUP)
    done = launching.end(process)
    assert done.code == 0 and done.out == b"done\n"


def test_few_file_descriptors_mean_no_logs_and_no_harm(launching: Launching) -> None:
    script = launching.script("import sys\nsys.stdout.write('hello\\n')\n")

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))

    done = launching.run("--nproc-per-node", "4", script, preexec_fn=few)
    assert done.code == 0 and done.out == b"hello\n" * 4
    assert "no log files" in done.err


# What a torch of another age might look like to us.
OTHER_TORCHES = {
    "the agent is another class": (
        "from torch.distributed.launcher import api\n"
        "class Agent(api.LocalElasticAgent): pass\n"
        "api.LocalElasticAgent = Agent\n"
    ),
    "the logs have no specs": (
        "import torch.distributed.run\n"
        "import torch.distributed.elastic.multiprocessing as multiprocessing\n"
        "del multiprocessing.LogsSpecs\n"
    ),
}


@pytest.mark.parametrize("other", OTHER_TORCHES)
def test_an_unknown_launcher_of_torch_runs_the_job_as_it_is(launching: Launching, other: str) -> None:
    launching.before = OTHER_TORCHES[other]
    script = launching.script(GLOO + "sys.stdout.write(f'rank {rank}\\n')\nsys.exit(3 if sys.argv[1:] else 0)\n")
    done = launching.run("--nproc-per-node", "2", script)
    assert done.code == 0 and sorted(done.out.splitlines()) == [b"rank 0", b"rank 1"]
    assert "torch's launcher is not known to rankcall" in done.err
    assert json.loads((done.run_dir / "report.json").read_text())["outcome"] == "completed"


def test_an_unknown_launcher_of_torch_still_gives_its_exit_code_and_a_verdict(launching: Launching) -> None:
    launching.before = OTHER_TORCHES["the agent is another class"]
    script = launching.script(GLOO + "if rank == 1:\n    raise ValueError('bad')\ndist.barrier()\n")
    done = launching.run("--nproc-per-node", "2", script)
    assert done.code == 1
    assert json.loads((done.run_dir / "report.json").read_text())["verdict"]["culprits"] == [1]
