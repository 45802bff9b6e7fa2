"""Whole screens, compared as text. `UPDATE_EXPECTED=1 pytest tests/render` writes them anew; read the diff."""

from __future__ import annotations

import io
import os
from pathlib import Path

import msgspec
import pytest
import render_reports as made

from rankcall.findings import Incident, Report
from rankcall.render.terminal import print_report, print_roll_call, render_report

EXPECTED = Path(__file__).parent / "expected"
BASE = "/home/user/project"
SOURCES = {made.SCRIPT: made.SOURCE}

SCREENS = {
    "skipped-batch": made.skipped_batch(),
    "crashed": made.crashed(),
    "completed": made.completed(),
    "withdrawn": made.withdrawn(),
    "thousands": made.thousands(),
    "nothing-known": Report(verb="why"),
}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", SCREENS)
def test_the_screen_is_as_expected(name: str, width: int) -> None:
    text = render_report(SCREENS[name], width=width, sources=SOURCES, base=BASE)
    file = EXPECTED / f"{name}-{width}.txt"
    if os.environ.get("UPDATE_EXPECTED"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160, 200])
@pytest.mark.parametrize("name", SCREENS)
@pytest.mark.parametrize("detail", ["quiet", "normal", "verbose"])
def test_no_line_is_wider_than_the_screen(name: str, width: int, detail: str) -> None:
    report = made.thousands(24) if name == "thousands" else SCREENS[name]
    text = render_report(report, width=width, detail=detail, sources=SOURCES)  # type: ignore[arg-type]
    assert max(len(line) for line in text.split("\n")) <= width


def test_the_answer_stands_first() -> None:
    text = render_report(made.skipped_batch(), width=200)
    assert text.split("\n")[0].startswith("rank 2 on host-a has 31 forwards but 30 backwards since step 30")


def test_quiet_says_the_verdict_and_no_more() -> None:
    text = render_report(made.skipped_batch(), width=400, detail="quiet")
    assert text == f"{made.skipped_batch().verdict.sentence}\n"  # type: ignore[union-attr]


def test_verbose_adds_the_evidence() -> None:
    text = render_report(made.skipped_batch(), detail="verbose")
    assert "rank 2, record: 31 forwards, 30 backwards, 30 optimizer steps" in text


def test_the_lines_around_the_place_are_shown() -> None:
    text = render_report(made.skipped_batch(), sources=SOURCES)
    assert "     8 |         if not torch.isfinite(loss):\n  >  9 |             continue\n    10 |" in text


def test_a_file_that_changed_since_is_not_shown_as_what_ran() -> None:
    changed = {made.SCRIPT: made.SOURCE.replace("continue", "pass")}
    text = render_report(made.skipped_batch(), sources=changed)
    assert "> 9 | continue" in text
    assert "isfinite" not in text


def test_frames_of_rankcall_itself_are_left_out() -> None:
    for detail in ("normal", "verbose"):
        text = render_report(made.skipped_batch(), detail=detail)  # type: ignore[arg-type]
        assert "hooked" not in text
        assert "torch/distributed/distributed_c10d.py:4821" in text


def test_a_verdict_said_while_the_job_ran_is_not_said_twice() -> None:
    report = made.skipped_batch()
    assert report.verdict is not None
    said = msgspec.structs.replace(report.verdict, sentence="the same in the present tense")
    with_it = msgspec.structs.replace(report, incidents=(Incident(0, 1000.0, said),))
    assert "present tense" not in render_report(with_it)
    replaced = msgspec.structs.replace(said, pitfall="uneven-steps")
    assert "present tense" in render_report(msgspec.structs.replace(report, incidents=(Incident(0, 1000.0, replaced),)))


def test_chinese_labels_around_the_same_report() -> None:
    text = render_report(made.skipped_batch(), lang="zh")
    assert "处理办法" in text
    assert "data-dependent-skip" in text


def test_a_pipe_gets_no_colour_and_a_forced_terminal_does() -> None:
    pipe = io.StringIO()
    print_report(made.skipped_batch(), console_file=pipe)
    assert "\x1b" not in pipe.getvalue()
    colored = render_report(made.skipped_batch(), color=True)
    assert "\x1b[1;31mrank 2 on host-a" in colored


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_wants_no_colour_gets_none(monkeypatch: pytest.MonkeyPatch, variable: dict[str, str]) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    colored = _Terminal()
    print_report(made.completed(), console_file=colored)
    assert "\x1b" in colored.getvalue()
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    plain = _Terminal()
    print_report(made.completed(), console_file=plain)
    assert "\x1b" not in plain.getvalue()


def test_an_ascii_stream_gets_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    print_report(made.skipped_batch(), console_file=stream, lang="zh")
    stream.flush()
    assert b"\\u" in raw.getvalue()


def test_the_roll_call_alone_says_who_is_where() -> None:
    file = io.StringIO()
    print_roll_call(made.skipped_batch(), console_file=file)
    assert file.getvalue().startswith("\nRoll call  4 ranks, host-a\n")
    assert "What to do" not in file.getvalue()
