"""The tree of stacks: one screen at any size, the odd ones marked, the user's lines first, and no harm in any text."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankcall.diagnose.stack_tree import RankStack, merge_stacks
from rankcall.render.page import Detail, Page, console_for, text_of
from rankcall.render.source_lines import SourceLines
from rankcall.render.stack_tree import MOST_LINES, draw_stack_tree
from rankcall.render.words import Words
from rankcall.snapshot import Frame

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
SCRIPT = "/home/u/project/train.py"
SOURCE = "\n".join(f"code_of_line_{number}()" for number in range(1, 101))


def in_loop(line: int) -> tuple[Frame, ...]:
    return (Frame(SCRIPT, line, "train"), Frame(SCRIPT, 80, "main"), Frame(SCRIPT, 84, "<module>"))


REDUCING = (
    Frame(f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce"),
    Frame(f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper"),
    *in_loop(57),
)
LOADING = (
    Frame("/usr/lib/python3.11/selectors.py", 415, "select"),
    Frame("/usr/lib/python3.11/multiprocessing/connection.py", 947, "wait"),
    Frame(f"{TORCH}/utils/data/dataloader.py", 725, "_BaseDataLoaderIter.__next__"),
    *in_loop(54),
)


def drawn(data: object, *, width: int = 100, detail: Detail = "normal", sources: dict[str, str] | None = None) -> str:
    page = Page(
        width, Words("en"), detail, SourceLines({SCRIPT: SOURCE} if sources is None else sources), "/home/u/project"
    )
    console = console_for(width, False)
    draw_stack_tree(console, page, data)
    return text_of(console)


def tree_of(*stacks: RankStack) -> Any:
    return merge_stacks(stacks)


def test_the_whole_drawing() -> None:
    stacks = [RankStack(rank, LOADING if rank == 37 else REDUCING) for rank in range(64)]
    assert drawn(tree_of(*stacks)) == (
        "\n"
        "Stacks of 64 ranks, outermost call first; > stands apart from most\n"
        "    0-63         train.py:84  <module>  code_of_line_84()\n"
        "                 train.py:80  main  code_of_line_80()\n"
        "    0-36, 38-63    train.py:57  train  code_of_line_57()\n"
        "                   [waits in all_reduce] torch/distributed/distributed_c10d.py:3252  all_reduce\n"
        "  > 37             train.py:54  train  code_of_line_54()\n"
        "  >                [data] _BaseDataLoaderIter.__next__ ... select  selectors.py:415  (3 calls)\n"
    )


def test_everything_when_verbose() -> None:
    text = drawn(tree_of(RankStack(0, REDUCING), RankStack(1, LOADING)), detail="verbose")
    for place in ("c10d_logger.py:83", "multiprocessing/connection.py:947", "dataloader.py:725", "selectors.py:415"):
        assert place in text
    assert ">" not in text.replace("<module>", "")
    assert "stands apart" not in text


def test_one_kind_of_stack_is_no_tree_unless_asked_for() -> None:
    same = tree_of(RankStack(0, REDUCING), RankStack(1, REDUCING))
    assert drawn(same) == ""
    assert "all_reduce" in drawn(same, detail="verbose")


@pytest.mark.parametrize("width", [40, 80, 160])
@pytest.mark.parametrize("kinds", [2, 9, 40, 300])
def test_it_is_one_screen_at_any_size(width: int, kinds: int) -> None:
    def own(rank: int) -> tuple[Frame, ...]:
        return tuple(Frame(SCRIPT, n, f"f{rank % kinds}_{n}") for n in range(30))

    stacks = [RankStack(rank, REDUCING) for rank in range(2_000)]
    stacks += [RankStack(2_000 + rank, own(rank)) for rank in range(kinds)]
    text = drawn(tree_of(*stacks), width=width)
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES + 3  # an empty line, the title, and what was left out
    assert all(len(line) <= width for line in lines)
    assert sum(line.startswith("  >") for line in lines) >= 1
    assert ("more kind" in text) == (kinds > 9)


def test_deep_branches_stay_on_the_screen() -> None:
    stacks = [RankStack(rank, tuple(Frame(SCRIPT, n, f"f{n}") for n in range(rank, -1, -1))) for rank in range(8)]
    text = drawn(tree_of(*stacks), width=80)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "f7" in text


def test_long_chains_of_the_users_calls_are_collapsed() -> None:
    deep = tuple(Frame(SCRIPT, n, f"layer_{n}") for n in range(60))
    text = drawn(tree_of(RankStack(0, deep), RankStack(1, REDUCING)))
    assert "layer_59 ... layer_5  train.py:5  (55 calls)" in text
    assert "train.py:4  layer_4" in text
    assert "layer_30" not in text


def test_lines_of_a_function_that_differ_are_listed() -> None:
    stacks = [RankStack(rank, in_loop(10 + rank)) for rank in range(20)]
    assert "train.py:10,11,12,...  train" in drawn(tree_of(*stacks, RankStack(20, REDUCING)))


def test_ranks_that_part_by_what_they_do_have_a_line_each() -> None:
    data = tree_of(*(RankStack(rank, in_loop(5), phase="backward" if rank else "save") for rank in range(3)))
    assert drawn(data) == ""
    forced = merge_stacks([RankStack(r, in_loop(5), phase="backward" if r else "save") for r in range(3)], level="user")
    text = drawn(forced)
    assert "    1-2    [backward]\n" in text
    assert "  > 0      [save]\n" in text


def test_other_threads_are_named() -> None:
    text = drawn(tree_of(RankStack(0, REDUCING), RankStack(0, LOADING, thread="saver")))
    assert "thread saver" in text


def test_files_without_text_show_no_code() -> None:
    text = drawn(tree_of(RankStack(0, REDUCING), RankStack(1, LOADING)), sources={})
    assert "code_of" not in text
    assert "train.py:57  train" in text


HOSTILE = {
    "ansi": "\x1b[2J\x1b[31mred\x1b]0;title\x07",
    "markup": "[bold red]x[/] [link=http://evil]y[/link] [/nothing]",
    "bidi": "train\u202eyp.niart",
    "lines": "a\nb\r\nc\td",
    "surrogate": "half \udc80",
    "wide": "漢字" * 300,
    "long": "x" * 1_000_000,
    "nul": "a\x00b",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("detail", ["normal", "verbose"])
def test_nothing_that_a_terminal_obeys_comes_through(name: str, detail: Detail) -> None:
    text = HOSTILE[name]
    inner, outer = Frame(text, 3, text), [Frame(f"/site-packages/{text}", 1, f"{text}{rank}") for rank in range(3)]
    stacks = [RankStack(rank, (inner, outer[rank]), text, text, text) for rank in range(3)]
    data: Any = merge_stacks(stacks)
    for row in (*data["tree"], *data["classes"]):
        row["ranks"] = text
    shown = drawn(data, detail=detail)
    assert shown
    bad = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    assert [sign for sign in shown if sign != "\n" and unicodedata.category(sign) in bad] == []
    assert len(shown) < 20_000


def test_what_is_no_tree_draws_nothing() -> None:
    good: Any = tree_of(RankStack(0, REDUCING), RankStack(1, LOADING))
    assert drawn(good)
    for bad in (
        None, 3, "x", [], {}, {"classes": [], "tree": []}, {**good, "tree": "x"}, {**good, "classes": [3]},
        {**good, "classes": []}, {**good, "ranks": "many"}, {**good, "tree": good["tree"][1:]},
        {**good, "tree": [{**good["tree"][0], "depth": -1}]}, {**good, "tree": [{**good["tree"][0], "ends": [7]}]},
        {**good, "tree": good["tree"][:1] * 100_000},
    ):  # fmt: skip
        assert drawn(bad) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["ranks", "classes", "tree", "depth", "ends", "file", "line", "left_out"]), inner
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(JSON, st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 1), max_size=2)), max_size=8))
def test_any_data_is_drawn_or_not_and_never_fails(anything: Any, rows: list[tuple[int, list[int]]]) -> None:
    assert isinstance(drawn(anything), str)
    tree = [{"depth": depth, "file": SCRIPT, "line": 3, "ends": ends} for depth, ends in rows]
    assert isinstance(drawn({"ranks": 2, "classes": [{}, {"odd": True}], "tree": tree}), str)
