"""What a job prints, names or raises is shown, and does nothing else: no cursor, no colour, no markup, no flood."""

from __future__ import annotations

import json
import unicodedata

import msgspec
import pytest
import render_reports as made
from hypothesis import given, settings
from hypothesis import strategies as st

from rankcall.findings import CollectiveRow, Evidence, ExitRow, Finding, Job, RankRow, Report, Rival, Verdict, Where
from rankcall.render import plain
from rankcall.render.json import to_json
from rankcall.render.svg import to_svg
from rankcall.render.terminal import render_report

HOSTILE = {
    "ansi": "\x1b[2J\x1b[31mred\x1b]0;title\x07",
    "c1": "\x9b31m\x85next",
    "markup": "[bold red]x[/] [link=http://evil]y[/link] :smile: [/nothing]",
    "bidi": "train\u202eyp.niart\u2066\u2069\u200f",
    "zero-width": "tr\u200bain\ufeff\u00ad",
    "carriage": "progress 1\rprogress 2\r\nnext\x0bv\x0cf",
    "tag": "hi\U000e0041\U000e0042",
    "surrogate": "half \udc80 \ud800",
    "marks": "a" + "\u0301" * 500,
    "wide": "漢字" * 200,
    "long": "x" * 10_000_000,
    "nul": "a\x00b",
    "separators": "a\u2028b\u2029c",
}


def report_made_of(text: str) -> Report:
    """A report with `text` in every place that takes one."""
    place = Where(text, 3, text, text)
    row = RankRow(
        rank=0, host=text, pid=1, state="crashed", step=1, phase=text, phase_for_s=1.0,
        collective=CollectiveRow(text, 1, text, 1, text), where=place, exit=ExitRow(1, text, text),
        local_rank=0, stack=(place, Where(f"/site-packages/{text}", 1, text)), devices=(text,), versions={text: text},
    )  # fmt: skip
    verdict = Verdict(
        pitfall=text, layer=text, title=text, sentence=text, confidence=0.5, proven=False, culprits=(0,), hosts=(text,),
        waiting=(), where=place, why=text, fix=(text,), rivals=(Rival(text, 0.1, text),),
    )  # fmt: skip
    return Report(
        verb="run",
        job=Job(1, (text,), (text,), None, text),
        outcome="crashed",
        verdict=verdict,
        ranks=(row,),
        findings=(Finding(text, "warning", text, where=place),),
        evidence=(Evidence(text, text, 0, text),),
    )


def unsafe(text: str) -> list[str]:
    bad = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    return [character for character in text if character != "\n" and unicodedata.category(character) in bad]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("detail", ["quiet", "normal", "verbose"])
def test_nothing_that_a_terminal_obeys_comes_through(name: str, detail: str) -> None:
    text = render_report(report_made_of(HOSTILE[name]), width=100, detail=detail)  # type: ignore[arg-type]
    assert unsafe(text) == []
    assert len(text) < 100_000


@pytest.mark.parametrize("name", HOSTILE)
def test_the_picture_is_well_formed_whatever_the_text(name: str) -> None:
    from xml.etree import ElementTree

    ElementTree.fromstring(to_svg(report_made_of(HOSTILE[name])))


def test_markup_is_shown_as_it_is() -> None:
    text = render_report(report_made_of(HOSTILE["markup"]), width=200)
    assert "[bold red]x[/] [link=http://evil]y[/link] :smile: [/nothing]" in text


def test_a_file_named_backwards_is_spelled_out() -> None:
    assert plain.line("train\u202eyp.niart") == "train\\u202eyp.niart"


def test_text_with_accents_and_chinese_is_left_alone() -> None:
    assert plain.line("Zoë 漢字 naïve e\u0301") == "Zoë 漢字 naïve e\u0301"


def test_piled_marks_are_stopped() -> None:
    assert plain.line("a" + "\u0301" * 6) == "a" + "\u0301" * 4 + "\\u0301\\u0301"


def test_json_escapes_what_a_terminal_would_obey_and_means_the_same() -> None:
    report = report_made_of(HOSTILE["bidi"] + HOSTILE["c1"])
    text = to_json(report)
    assert not any(character in text for character in "\x9b\x85\u202e\u2066\u200f")
    assert json.loads(text)["verdict"]["sentence"] == HOSTILE["bidi"] + HOSTILE["c1"]


def test_json_is_the_report_and_nothing_is_cut() -> None:
    report = made.all_different(100)
    assert msgspec.json.decode(to_json(report), type=Report) == report


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_safe(text: str) -> None:
    shown = render_report(report_made_of(text), width=80)
    assert unsafe(shown) == []
