"""Small parts: ranges, durations, paths, columns that give way, source lines, the pages of pitfalls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankcall.findings import Where
from rankcall.pitfalls import names, page
from rankcall.render import plain
from rankcall.render.columns import Column, cell, fit
from rankcall.render.pitfall_page import render_names, render_page
from rankcall.render.roll_call import where_text
from rankcall.render.source_lines import SourceLines
from rankcall.render.words import _CHINESE, _ENGLISH


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([1, 0, 2, 2], "0-2"),
        ([*range(37), *range(38, 64)], "0-36, 38-63"),
        (range(0, 20, 2), "0, 2, 4, 6, 8 and 5 more"),
    ],
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert plain.ranges(numbers) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"), (0.62, "0.6 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min"),
        (200, "3 min 20 s"), (3599.7, "1 h"), (7500, "2 h 5 min"), (-1, "0.0 s"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert plain.duration(seconds) == text


@pytest.mark.parametrize(
    ("path", "library"),
    [
        ("/home/u/train.py", False),
        ("/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", True),
        ("/usr/lib/python3/dist-packages/numpy/core.py", True),
        ("/usr/lib/python3.12/threading.py", True),
        ("<frozen runpy>", True),
        ("<string>", True),
        ("/home/u/python3.11-tests/train.py", False),
        ("train.py", False),
    ],
)
def test_which_files_are_the_users_own(path: str, library: bool) -> None:
    assert plain.is_library(path) is library


def test_places_are_short() -> None:
    torch = "/opt/venv/lib/python3.11/site-packages/torch/nn/functional.py"
    assert where_text(Where(torch, 12)) == "torch/nn/functional.py:12"
    assert where_text(Where("/home/u/p/train.py", 5), "/home/u/p") == "train.py:5"
    assert where_text(Where("/home/u/p2/train.py", 5), "/home/u/p") == "/home/u/p2/train.py:5"
    assert where_text(Where("train.py", 0)) == "train.py"
    assert where_text(None) == ""


def test_cells_are_cut_at_the_chosen_end() -> None:
    assert cell("abcdef", 4) == "abc…"
    assert cell("path/to/train.py:57", 12, "end") == "…train.py:57"
    assert cell("漢字漢字", 4) in ("漢… ", "漢…")
    assert cell("ab", 4) == "ab  "


def test_columns_without_content_are_left_out_and_the_least_needed_yield() -> None:
    columns = [
        Column("rank", ("0", "1"), smallest=4, yields=1),
        Column("host", ("", ""), smallest=4, yields=1),
        Column("pid", ("123456", "123457"), smallest=0, yields=9),
        Column("where", ("a" * 30, "b" * 10), smallest=10, yields=2),
    ]
    assert [column.title for column, _ in fit(columns, 100)] == ["rank", "pid", "where"]
    narrow = fit(columns, 20)
    assert [column.title for column, _ in narrow] == ["rank", "where"]
    assert sum(room for _, room in narrow) + 2 <= 20


def test_source_lines_come_from_the_unchanged_file(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("a = 1\nb = 2\nc = 3\n")
    assert SourceLines().around(Where(str(file), 2, code="b = 2"), 1) == [(1, "a = 1"), (2, "b = 2"), (3, "c = 3")]
    assert SourceLines().around(Where(str(file), 2, code="b = 7"), 1) == [(2, "b = 7")]
    assert SourceLines().around(Where(str(file), 2), 1) == []
    assert SourceLines().around(Where(str(file), 99, code="b = 2"), 1) == [(99, "b = 2")]
    assert SourceLines().around(Where(str(file), 0, code="b = 2"), 1) == [(0, "b = 2")]


def test_a_pipe_named_as_source_is_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    assert SourceLines().around(Where(str(pipe), 1, code="x"), 1) == [(1, "x")]
    assert SourceLines().around(Where("bad\0name", 1, code="x"), 1) == [(1, "x")]


def test_both_languages_have_the_same_words_with_the_same_blanks() -> None:
    import string

    def blanks(text: str) -> set[str | None]:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name}

    assert _ENGLISH.keys() == _CHINESE.keys()
    assert all(blanks(_ENGLISH[key]) == blanks(_CHINESE[key]) for key in _ENGLISH)


@pytest.mark.parametrize("width", [80, 100])
def test_every_page_fits_the_width_and_shows_all_fixes(width: int) -> None:
    for name in names():
        found = page(name)
        text = render_page(found, width=width)
        assert text.startswith(f"{name}: {found.title}"[: width - 20].rsplit(" ", 1)[0])
        assert f"  {len(found.fix)}. " in text
        assert max(len(line) for line in text.split("\n")) <= width


def test_the_list_of_names_stays_in_its_columns() -> None:
    text = render_names([("data", [("uneven-steps", "ranks have different numbers of steps")])], width=80, color=False)
    assert text == "data\n  uneven-steps  ranks have different numbers of steps\n"
