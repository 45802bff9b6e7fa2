"""How the catalogue answers: names, typing errors, languages, and pages that break the format."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rankcall.pitfalls as pitfalls
from rankcall.errors import RankcallError
from rankcall.pitfalls import closest, headings, layer, names, page, seen_by
from rankcall.pitfalls import pages as pages_module
from rankcall.pitfalls.registry import REGISTRY

GOOD = """# A title

## What happens
One line
and its continuation.

A second paragraph.

## Why
Because.

## How to tell
Look.

## Fix
- Do this
  and that.
- Or that.

## Example
```python
# a comment, not a heading
x = 1
```

## Related
lone-collective, program-error

## Sources
- https://docs.pytorch.org/
"""


def _parse(text: str) -> pages_module.Page:
    return pages_module.parse(text, "uneven-steps", REGISTRY["uneven-steps"], "en")


def test_paragraphs_and_list_items_are_unwrapped_and_code_is_not() -> None:
    found = _parse(GOOD)
    assert found.title == "A title"
    assert found.happens == "One line and its continuation.\n\nA second paragraph."
    assert found.fix == ("Do this and that.", "Or that.")
    assert found.example == "```python\n# a comment, not a heading\nx = 1\n```"
    assert found.related == ("lone-collective", "program-error")


def test_example_and_related_may_be_left_out() -> None:
    start, end = GOOD.index("## Example"), GOOD.index("## Sources")
    found = _parse(GOOD[:start] + GOOD[end:])
    assert (found.example, found.related) == ("", ())


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("", "starts with '# '"),
        (GOOD.removeprefix("# "), "starts with '# '"),
        (GOOD.replace("## Why", "## Reason"), "'## Reason'"),
        (GOOD.replace("## Why", "### Why"), "'### Why'"),
        (GOOD.replace("## Why\nBecause.\n", ""), "no text for why"),
        (GOOD.replace("Because.", ""), "no text for why"),
        (GOOD.replace("## Related", "## Why"), "'## Why'"),
        (GOOD + "\n## Fix\n- Late.\n", "'## Fix'"),
        (GOOD.replace("- Do this", "Do this"), "neither a list item"),
        (GOOD.replace("x = 1\n```", "x = 1"), "not closed"),
        (GOOD.replace("# A title\n", "# A title\nLoose text.\n"), "before the first heading"),
    ],
)
def test_a_page_that_breaks_the_format_is_refused_by_name(broken: str, says: str) -> None:
    with pytest.raises(RankcallError) as raised:
        _parse(broken)
    assert says in str(raised.value)
    assert str(raised.value).startswith("uneven-steps.en.md")


@pytest.mark.parametrize("ask", [page, layer, seen_by])
def test_an_unknown_name_is_one_sentence_with_the_nearest_name(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(RankcallError) as raised:
        ask("uneven-step")
    assert str(raised.value) == "no pitfall is called 'uneven-step'; did you mean uneven-steps?"


def test_a_name_like_nothing_known_points_to_the_list() -> None:
    with pytest.raises(RankcallError, match="`rankcall explain` lists all names"):
        page("qqqq")
    assert closest("") == ()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("uneven_steps", "uneven-steps"),
        ("Lone Collective", "lone-collective"),
        ("port-inuse", "port-in-use"),
        ("sampler", "sampler-wrong-rank"),
        ("rank-left-erly", "rank-left-early"),
    ],
)
def test_typing_errors_find_their_name(typed: str, meant: str) -> None:
    assert meant in closest(typed)
    assert len(closest(typed)) <= 3


HOSTILE = ["../registry", "..", "data/uneven-steps", "uneven-steps.en", "\x1b[31m", "a" * 10_000]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_name_is_only_unknown(hostile: str) -> None:
    with pytest.raises(RankcallError) as raised:
        page(hostile)
    assert len(str(raised.value)) < 200
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("lang", ["zh", "zh_CN.UTF-8", "C", "", "../../etc", "en-GB", "ü", "\x00"])
def test_a_language_without_pages_falls_back_to_english_and_says_so(lang: str) -> None:
    found = page("lone-collective", lang)
    assert found.lang == "en"
    assert found.title == page("lone-collective").title
    assert headings(lang)["fix"] == "Fix"


@pytest.fixture
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in the place of the pages."""
    monkeypatch.setattr(pages_module, "_folder", lambda: tmp_path)
    pages_module.headings.cache_clear()
    pitfalls.page.cache_clear()
    yield tmp_path
    pages_module.headings.cache_clear()
    pitfalls.page.cache_clear()


CHINESE = """# 步数不一致

## 现象
训练停住
不动。

## 原因
因为。

## 判断
看。

## 修复
- 让 DistributedSampler
  切分。

## 来源
- https://docs.pytorch.org/
"""


def test_a_second_language_needs_files_only(catalogue: Path) -> None:
    (catalogue / "data").mkdir()
    (catalogue / "headings.en").write_text("A\nB\nC\nD\nE\nF\nG\n")
    (catalogue / "headings.zh").write_text("现象\n原因\n判断\n修复\n示例\n相关\n来源\n", encoding="utf-8")
    (catalogue / "data" / "uneven-steps.zh.md").write_text(CHINESE, encoding="utf-8")
    found = page("uneven-steps", "zh_CN.UTF-8")
    assert (found.lang, found.title) == ("zh", "步数不一致")
    assert found.happens == "训练停住不动。"
    assert found.fix == ("让 DistributedSampler切分。",)
    assert headings("zh")["fix"] == "修复"


def test_a_page_missing_from_the_installation_is_said_in_one_sentence(catalogue: Path) -> None:
    with pytest.raises(RankcallError, match="missing from this installation"):
        page("uneven-steps")


def test_names_and_layers_need_neither_torch_nor_the_pages(catalogue: Path) -> None:
    assert layer(names()[0]) == "environment"
    code = "import sys, rankcall.pitfalls; print('torch' in sys.modules, 'difflib' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded == "False False\n"
