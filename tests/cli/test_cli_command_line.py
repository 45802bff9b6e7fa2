"""The command line around the verbs: start-up, help, exit codes, errors of our own, pipes, Ctrl-C, completion."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_runs import command, run_folder, sleeping_rank

import rankcall.cli
from rankcall import __version__

VERBS = ("run", "why", "explain", "demo", "version")
HEAVY = ("torch", "rich", "numpy", "msgspec", "rankcall.launch", "rankcall.diagnose", "rankcall.watch")


def _modules_after(code: str) -> set[str]:
    script = (
        f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stderr.split("\n"))


def test_importing_the_package_loads_nothing_else() -> None:
    loaded = _modules_after("import rankcall")
    assert {name for name in loaded if name.startswith("rankcall")} == {"rankcall"}


@pytest.mark.parametrize("arguments", [["--help"], ["why", "--help"], ["explain", "--help"], ["--version"]])
def test_help_loads_neither_torch_nor_rich(arguments: list[str]) -> None:
    loaded = _modules_after(f"from rankcall.cli import main; main({arguments!r})")
    assert loaded.isdisjoint(HEAVY)


def test_explaining_a_pitfall_needs_no_torch() -> None:
    loaded = _modules_after("from rankcall.cli import main; main(['explain', 'uneven-steps'])")
    assert "torch" not in loaded


def test_help_names_every_verb() -> None:
    ended = command("--help")
    assert ended.code == 0
    assert all(f"\n  {verb} " in ended.out for verb in VERBS)


@pytest.mark.parametrize("verb", [[], ["why"], ["explain"], ["demo"]])
def test_every_help_ends_with_an_example(verb: list[str]) -> None:
    last = command(*verb, "--help").out.rstrip().split("\n")[-1]
    assert last.strip().startswith(("Example:  rankcall", "Examples:  rankcall"))


def test_the_version() -> None:
    assert command("--version").out == f"rankcall {__version__}\n"
    assert command("version").out == f"rankcall {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [["bogus"], ["why", "--format", "xml"], ["why", "--lang", "fr"], ["explain", "--nonsense"], ["explain", "no-such"]],
)
def test_wrong_usage_is_exit_code_2_and_no_traceback(arguments: list[str]) -> None:
    ended = command(*arguments)
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert ended.err


def _main(arguments: list[str]) -> int:
    try:
        return rankcall.cli.main(arguments)
    except SystemExit as ending:
        assert isinstance(ending.code, int)
        return ending.code


class _Launch:
    """Stands in for `rankcall.launch`: notes what it was given, and ends as told."""

    def __init__(self, ends: int | BaseException) -> None:
        self.ends, self.given = ends, [""]

    def main(self, arguments: list[str]) -> int:
        self.given = arguments
        if isinstance(self.ends, BaseException):
            raise self.ends
        return self.ends


def _with_launch(monkeypatch: pytest.MonkeyPatch, ends: int | BaseException) -> _Launch:
    launch = _Launch(ends)
    monkeypatch.setitem(sys.modules, "rankcall.launch", launch)  # type: ignore[arg-type]
    return launch


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["-h"],
        [],
        ["--nproc-per-node", "4", "train.py", "--lr", "0.1", "--help"],
        ["--nproc_per_node=4", "-m", "package.train", "--", "-x"],
        ["--run-dir", "d", "--", "mpirun", "-n", "4", "python", "train.py", "--", "--output", "x"],
        ["train.py", "--version", "--format", "json", "-q", "", " ", "--install-completion"],
    ],
)
def test_run_hands_everything_over_unread(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    launch = _with_launch(monkeypatch, 7)
    assert _main(["run", *arguments]) == 7
    assert launch.given == arguments


def test_an_error_of_our_own_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _with_launch(monkeypatch, KeyError("boom"))
    assert _main(["run", "train.py"]) == 70
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "an error of rankcall itself (KeyError: 'boom')" in said
    assert __version__ in said


def test_verbose_adds_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _with_launch(monkeypatch, KeyError("boom"))
    assert _main(["run", "-v", "train.py"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_ends_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _with_launch(monkeypatch, KeyboardInterrupt())
    assert _main(["run", "train.py"]) == 130
    assert capsys.readouterr().err == ""


def test_a_signal_in_the_middle_of_why_ends_quietly(tmp_path: Path) -> None:
    code = (
        "import sys, time, rankcall.why\n"
        "def slow(*arguments):\n    print('ready', flush=True); time.sleep(30)\n"
        "rankcall.why.answer = slow\n"
        "from rankcall.cli import main\nsys.exit(main(['why', 'x']))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=10)
    assert (child.returncode, err) == (130, "")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", sleeping_rank())
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "rankcall", "why", str(folder), "--format", "json"],
        stdout=writing, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_closed_standard_output_is_no_traceback(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", sleeping_rank())
    done = subprocess.run(
        ["bash", "-c", '"$0" -m rankcall why "$1" >&-', sys.executable, str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr


def test_a_full_disk_behind_standard_output_is_said(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    folder = run_folder(tmp_path / "run", sleeping_rank())
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rankcall", "why", str(folder)], stdout=full, stderr=subprocess.PIPE, text=True,
            check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_any_locale_will_do(tmp_path: Path, locale: str) -> None:
    folder = run_folder(tmp_path / "run", sleeping_rank())
    ended = command("why", str(folder), "--lang", "zh", LC_ALL=locale, PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert ended.code == 1, ended.err


def test_explain_lists_and_completes_names() -> None:
    assert "\n  uneven-steps " in command("explain").out
    completion = {"_RANKCALL_COMPLETE": "complete_bash", "COMP_WORDS": "rankcall explain uneven", "COMP_CWORD": "2"}
    ended = command(**completion)
    assert ended.out.split() == ["uneven-steps", "uneven-gather"] or set(ended.out.split()) == {
        "uneven-steps",
        "uneven-gather",
    }


def test_explain_knows_what_was_meant() -> None:
    assert command("explain", "Uneven_Steps").code == 0
    ended = command("explain", "uneven-step")
    assert (ended.code, ended.out) == (2, "")
    assert "did you mean uneven-steps?" in ended.err


def test_explain_as_json() -> None:
    import json

    page = json.loads(command("explain", "uneven-steps", "--format", "json").out)
    assert page["name"] == "uneven-steps"
    assert page["fix"]


def test_the_demo_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    assert _main(["demo"]) == 2
    assert "pip install torch" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the demo asks for torch first")
def test_the_demo_takes_only_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "something").write_text("")
    ended = command("demo", "--keep", str(tmp_path))
    assert ended.code == 2
    assert "already holds something" in ended.err
