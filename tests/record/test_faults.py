"""A fault inside any hook leaves the job's result and exit code unchanged."""

from __future__ import annotations

import pytest

from .conftest import PROGRAMS, Runner


@pytest.mark.slow
def test_each_inner_function_may_raise_and_the_results_stay(runner: Runner) -> None:
    done = runner.python(str(PROGRAMS / "every_fault.py"), timeout=150).done
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[0] == "sound True 0"
    assert len(lines) > 33
    assert [line for line in lines[1:] if not line.startswith("same ")] == []


@pytest.mark.slow
def test_the_programs_own_exceptions_are_never_taken_for_ours(runner: Runner) -> None:
    done = runner.python(str(PROGRAMS / "alarm_in_a_hook.py"), timeout=60).done
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "lost 0, recorded True\n"


EXITS = {
    "sys.exit": ("import sys; sys.exit(5)", 5),
    "exit builtin": ("exit(6)", 6),
    "os._exit": ("import os; os._exit(7)", 7),
    "raise": ("raise ValueError('mine')", 1),
    "SystemExit": ("raise SystemExit(8)", 8),
    "end": ("print('done')", 0),
}


@pytest.mark.parametrize("name", EXITS)
@pytest.mark.parametrize("broken", ["none", "_write", "describe", "note_exception", "_site_text", "_note_exit"])
def test_exit_codes_stay_when_the_exit_note_is_broken(runner: Runner, name: str, broken: str) -> None:
    code, expected = EXITS[name]
    breaking = (
        ""
        if broken == "none"
        else (
            "import rankcall.record.exits as e\n"
            "exec(compile('def boom(*a, **k): raise RuntimeError(\"planted\")', e.__file__, 'exec'))\n"
            f"e.{broken} = boom\n"
        )
    )
    done = runner.python("-c", breaking + code).done
    assert done.returncode == expected
    assert "planted" not in done.stderr
    assert ("ValueError: mine" in done.stderr) == (name == "raise")
