"""The roll call drawn as a table. Which ranks share a line is `roll_call`'s matter."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from rankcall.findings import RankState, Report
from rankcall.render import plain
from rankcall.render.columns import GAP, Column, cell, fit
from rankcall.render.page import Page
from rankcall.render.roll_call import RollLine, roll_call

_STATE_STYLES: dict[RankState, str] = {
    "waiting": "yellow",
    "missing": "bold red",
    "computing": "green",
    "loading": "cyan",
    "saving": "cyan",
    "finished": "dim",
    "crashed": "bold red",
    "frozen": "bold red",
    "unknown": "magenta",
}


def draw_roll_call(console: Console, page: Page, report: Report) -> None:
    """Draw how many ranks on which hosts there are, and a line for every rank or group of equal ranks."""
    if not report.ranks:
        return
    culprits = report.verdict.culprits if report.verdict is not None else ()
    call = roll_call(report.ranks, culprits, page.words, base=page.base, every_rank=page.verbose)
    hosts = sorted({row.host for row in report.ranks})
    title = Text(page.words("roll-call"), "bold")
    where = plain.line(hosts[0], 60) if len(hosts) == 1 else page.words("hosts", count=len(hosts))
    title.append(f"  {page.words.ranks(len(report.ranks))}{', ' if where else ''}{where}", "not bold dim")
    console.print()
    console.print(title)
    _table(console, page, call.lines, _columns(page, call.lines, one_host=len(hosts) == 1))
    if call.left_out:
        console.print(Text(f"    {page.words('rows.more', count=call.left_out)}", "dim"))


def _columns(page: Page, lines: Sequence[RollLine], *, one_host: bool) -> list[Column]:
    """What is least missed on a narrow screen yields first."""
    word = page.words
    same_world = len({line.world_size for line in lines if line.world_size}) < 2
    hosts = tuple("" if one_host else line.host for line in lines)
    worlds = tuple("" if same_world else line.world_size for line in lines)
    devices = tuple(line.devices if page.verbose else "" for line in lines)
    states = tuple(word(f"state.{line.state}") for line in lines)
    return [
        Column(word("col.rank"), tuple(line.ranks for line in lines), smallest=12, yields=1),
        Column(word("col.host"), hosts, smallest=8, yields=3),
        Column(word("col.local"), _local_ranks(lines, one_host), smallest=0, yields=8),
        Column(word("col.world"), worlds, smallest=4, yields=2),
        Column(word("col.pid"), tuple(line.pid for line in lines), smallest=8, yields=6),
        Column(word("col.state"), states, smallest=4, yields=0),
        Column(word("col.step"), tuple(line.step for line in lines), smallest=5, yields=2),
        Column(word("col.doing"), tuple(line.doing for line in lines), smallest=12, yields=4),
        Column(word("col.where"), tuple(line.where for line in lines), smallest=14, yields=5, keep="end"),
        Column(word("col.devices"), devices, smallest=0, yields=9),
        Column(word("col.exit"), tuple(line.exit for line in lines), smallest=8, yields=7),
    ]


def _local_ranks(lines: Sequence[RollLine], one_host: bool) -> tuple[str, ...]:
    """Local ranks are worth a column only where they differ from the ranks."""
    if one_host and all(line.local_rank in ("", line.ranks) for line in lines):
        return tuple("" for _ in lines)
    return tuple(line.local_rank for line in lines)


def _table(console: Console, page: Page, lines: Sequence[RollLine], columns: Sequence[Column]) -> None:
    fitted = fit(columns, page.width - 4)
    titles = (" " * GAP).join(cell(column.title, room) for column, room in fitted)
    console.print(Text("    " + titles.rstrip(), "dim", no_wrap=True))
    for at, line in enumerate(lines):
        text = Text(f"  {'>' if line.culprit else ' '} ", "bold" if line.culprit else "", no_wrap=True)
        for position, (column, room) in enumerate(fitted):
            style = _STATE_STYLES[line.state] if column.title == page.words("col.state") else ""
            text.append((" " * GAP if position else "") + cell(column.cells[at], room, column.keep), style)
        text.rstrip()
        console.print(text)
