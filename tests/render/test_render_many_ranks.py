"""However many ranks a job has, and however little they have in common, it is one screen, and the guilty are on it."""

from __future__ import annotations

import pytest
import render_reports as made

from rankcall.findings import RankRow
from rankcall.render.roll_call import MOST_LINES, roll_call
from rankcall.render.terminal import render_report
from rankcall.render.words import Words

ONE_SCREEN = 60


@pytest.mark.parametrize("width", [80, 120])
def test_4096_ranks_in_three_states_are_three_lines(width: int) -> None:
    text = render_report(made.thousands(), width=width)
    assert text.count("\n") <= 40
    assert "> 1337 " in text
    assert "node-167" in text


def test_4096_ranks_with_nothing_in_common_still_fit() -> None:
    text = render_report(made.all_different(), width=120)
    roll = text[text.index("Roll call") : text.index("More:")]
    assert roll.count("\n") <= MOST_LINES + 5


def test_long_texts_of_a_verdict_are_cut() -> None:
    assert render_report(made.all_different(), width=120).count("\n") <= 3 * ONE_SCREEN


def test_every_rank_is_counted_once() -> None:
    report = made.thousands(64)
    call = roll_call(report.ranks, [1337], Words())
    assert call.left_out == 0
    assert sum(_count(line.ranks) for line in call.lines) == 64


def _count(ranks: str) -> int:
    return int(ranks.rpartition("(")[2].rstrip(")")) if "(" in ranks else 1


def test_culprits_are_never_among_the_left_out() -> None:
    report = made.all_different(400)
    assert report.verdict is not None
    call = roll_call(report.ranks, report.verdict.culprits, Words())
    assert len(call.lines) <= MOST_LINES
    assert any(line.culprit for line in call.lines)


def test_a_rank_that_stands_out_is_kept_when_lines_run_short() -> None:
    rows = [RankRow(rank=rank, host="a", pid=rank, state="waiting", phase=f"phase-{rank // 10}") for rank in range(200)]
    rows[77] = RankRow(rank=77, host="a", pid=77, state="frozen", phase="data")
    call = roll_call(rows, [], Words())
    assert any(line.state == "frozen" for line in call.lines)
    assert call.left_out > 0


def test_eight_ranks_have_a_line_each_with_their_pid() -> None:
    call = roll_call(made.thousands(8).ranks, [], Words())
    assert [line.ranks for line in call.lines] == [str(rank) for rank in range(8)]
    assert all(line.pid for line in call.lines)


def test_two_processes_that_claim_one_rank_are_two_lines() -> None:
    rows = [made.waiting(0), made.waiting(1), made.waiting(1, host="host-b")]
    assert [line.ranks for line in roll_call(rows, [1], Words()).lines] == ["0", "1", "1"]


def test_a_process_without_a_rank_is_shown_last() -> None:
    rows = [RankRow(rank=None, host="a", pid=9, state="unknown"), made.waiting(0)]
    assert [line.ranks for line in roll_call(rows, [], Words()).lines] == ["0", "?"]


def test_verbose_lists_every_rank() -> None:
    call = roll_call(made.thousands(512).ranks, [1337], Words(), every_rank=True)
    assert len(call.lines) == 512
