"""The `--` form: any launcher command, its own exit code, its own signals."""

from __future__ import annotations

import signal
import sys

import pytest
from launching import Launching, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fake(launching: Launching) -> None:
    launching.fake = True


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -9 $$", 137)]
)
def test_the_commands_own_exit_code_is_passed_on(launching: Launching, script: str, code: int) -> None:
    done = launching.run("--", "bash", "-c", script)
    assert done.code == code
    assert done.calls()[-1]["exit_code"] == code
    assert done.calls()[-1]["outcome"] == ("completed" if code == 0 else "crashed")


def test_the_output_passes_unchanged_and_is_kept(launching: Launching) -> None:
    text = "printf 'a\\0b\\r\\xff\\n'; printf 'no end'; printf 'Traceback (most recent call last):\\nx\\n' >&2"
    done = launching.run("--", "bash", "-c", text)
    assert done.out == b"a\0b\r\xff\nno end"
    assert done.err == "Traceback (most recent call last):\nx\n"
    (raw,) = (done.run_dir / "attempt-0" / "logs").glob("*-command.stdout")
    assert raw.read_bytes() == done.out


def test_the_watcher_is_told_of_the_command_and_its_ranks_get_the_environment(launching: Launching) -> None:
    done = launching.run("--", "bash", "-c", "echo $RANKCALL_TEST")
    assert done.out == b"from the watcher\n"
    names = [call["call"] for call in done.calls()]
    assert names.index("start") < names.index("command_started") < names.index("finish")


def test_a_python_program_prints_at_once_although_its_output_is_a_pipe(launching: Launching) -> None:
    script = launching.script("import time\nprint('up')\ntime.sleep(30)\n")
    process = launching.start("--", sys.executable, script)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGTERM)
    assert launching.end(process, 20).code == 143


def test_standard_input_reaches_the_command(launching: Launching) -> None:
    (launching.folder / "input").write_text("typed\n")
    with (launching.folder / "input").open() as typed:
        done = launching.run("--", "cat", stdin=typed)
    assert done.out == b"typed\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on_and_its_answer_is_the_exit_code(launching: Launching, number: signal.Signals) -> None:
    name = number.name[3:]
    process = launching.start("--", "bash", "-c", f"trap 'echo got; exit 9' {name}; echo up; sleep 60 & wait")
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    process.send_signal(number)
    done = launching.end(process)
    assert done.code == 9 and done.out == b"got\n"
    calls = [call["call"] for call in done.calls()]
    assert calls.index("collect") < calls.index("finish")
    wait_until(lambda: not launching.processes(), 5)


def test_user_signals_are_passed_on_and_end_nothing(launching: Launching) -> None:
    process = launching.start("--", "bash", "-c", "trap 'echo usr1; exit 0' USR1; echo up; while :; do sleep 0.1; done")
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGUSR1)
    done = launching.end(process)
    assert done.code == 0 and done.out == b"usr1\n"


def test_on_hang_stop_ends_everything_below_the_command(launching: Launching) -> None:
    launching.environment["FAKE_WATCHER_STOP_COMMAND"] = "0.5"
    done = launching.run("--on-hang", "stop", "--", "bash", "-c", "sleep 60 & setsid sleep 61 & wait")
    assert done.code == 124 and not launching.processes()


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_everything_below_the_command_at_once(
    launching: Launching, second: signal.Signals
) -> None:
    """Also what a launcher has started in sessions of their own, as torchrun does with its ranks."""
    deaf = (
        "trap '' INT TERM; setsid bash -c \"trap '' INT TERM; while :; do sleep 1; done\" & echo up; sleep 60; sleep 60"
    )
    process = launching.start("--", "bash", "-c", deaf)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGINT)
    wait_until(lambda: '"interrupt"' in (launching.folder / "calls.jsonl").read_text())
    process.send_signal(second)
    done = launching.end(process, 10)
    assert done.code == 137 and not launching.processes()


def test_a_command_that_cannot_be_started_is_wrong_usage(launching: Launching) -> None:
    (launching.folder / "text").write_text("no program")
    (launching.folder / "text").chmod(0o755)
    done = launching.run("--", "./text")
    assert done.code == 2 and "cannot start ./text" in done.err and "Traceback" not in done.err
