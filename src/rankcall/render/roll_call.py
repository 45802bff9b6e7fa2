"""The roll call as lines of text: ranks in the same state share a line, so that any job fits on a screen.

How the lines are drawn is `terminal`'s matter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from rankcall.findings import CollectiveRow, ExitRow, RankRow, RankState, Where
from rankcall.render import plain
from rankcall.render.words import Words

# Up to this many ranks everyone has a line of its own, with its pid.
FEW_RANKS = 8
MOST_LINES = 12
_SHORT_MEMBERS = 16  # characters of a group's member list


@dataclass(frozen=True, slots=True)
class RollLine:
    """One line: the ranks that share it, and the text of each column ("" where there is nothing to say)."""

    ranks: str
    host: str
    local_rank: str
    world_size: str
    pid: str
    state: RankState
    step: str
    doing: str
    where: str
    exit: str
    devices: str
    culprit: bool


@dataclass(frozen=True, slots=True)
class RollCall:
    """The lines shown, and how many ranks are not among them."""

    lines: tuple[RollLine, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class _Spelling:
    """The words, and whether operations are told with their group: where there are several."""

    words: Words
    groups: bool


def roll_call(
    rows: Sequence[RankRow],
    culprits: Sequence[int],
    words: Words,
    *,
    base: str = "",
    every_rank: bool = False,
) -> RollCall:
    """Lay out the roll call. Paths are shown from the folder `base`; `every_rank` lifts all limits."""
    guilty = frozenset(culprits)
    words_of = _Spelling(words, len({row.collective.group for row in rows if row.collective is not None}) > 1)
    base = _common_folder(rows) or base
    ordered = sorted(rows, key=lambda row: (row.rank is None, row.rank or 0, row.host, row.pid or 0))
    if every_rank or len(ordered) <= FEW_RANKS:
        return RollCall(tuple(_line([row], guilty, words_of, base) for row in ordered))
    groups = _grouped(ordered, guilty)
    shown = _most_telling(groups, guilty)
    left_out = len(ordered) - sum(len(group) for group in shown)
    return RollCall(tuple(_line(group, guilty, words_of, base) for group in shown), left_out)


def _common_folder(rows: Sequence[RankRow]) -> str:
    """The folder that all places lie in, "" if there is none: the table has no room to repeat it."""
    files = {row.where.file for row in rows if row.where is not None and not plain.is_library(row.where.file)}
    folders = {str(PurePath(file).parent) for file in files}
    return os.path.commonpath(folders) if folders and all(folder.startswith("/") for folder in folders) else ""


def _exact(row: RankRow) -> Hashable:
    return (_operation(row), row.step)


def _operation(row: RankRow) -> Hashable:
    where = row.where and (row.where.file, row.where.line)
    collective = row.collective and (row.collective.group, row.collective.seq, row.collective.op)
    return (row.state, row.phase, collective, where, row.exit)


def _place(row: RankRow) -> Hashable:
    where = row.where and (row.where.file, row.where.line)
    ending = row.exit and (row.exit.code, row.exit.signal)
    return (row.state, row.phase, row.collective and row.collective.op, where, ending)


def _state(row: RankRow) -> Hashable:
    return (row.state, row.phase)


# From the finest way of putting ranks together to the coarsest; the first that fits is taken.
_WAYS: tuple[Callable[[RankRow], Hashable], ...] = (_exact, _operation, _place, _state)


def _grouped(rows: Sequence[RankRow], guilty: frozenset[int]) -> list[list[RankRow]]:
    groups: list[list[RankRow]] = []
    for way in _WAYS:
        by_key: dict[Hashable, list[RankRow]] = {}
        for row in rows:
            by_key.setdefault((row.rank in guilty, way(row)), []).append(row)
        groups = list(by_key.values())
        if len(groups) <= MOST_LINES:
            break
    return groups


def _most_telling(groups: list[list[RankRow]], guilty: frozenset[int]) -> list[list[RankRow]]:
    """At most MOST_LINES of the groups, in their order: the culprits', then the small ones that stand out."""
    if len(groups) <= MOST_LINES:
        return groups
    by_weight = sorted(range(len(groups)), key=lambda at: (groups[at][0].rank not in guilty, len(groups[at])))
    return [groups[at] for at in sorted(by_weight[:MOST_LINES])]


def _line(rows: Sequence[RankRow], guilty: frozenset[int], spelling: _Spelling, base: str) -> RollLine:
    first, words = rows[0], spelling.words
    known = [row.rank for row in rows if row.rank is not None]
    return RollLine(
        ranks=_ranks(known, len(rows)),
        host=_host(rows, words),
        local_rank=_same(rows, lambda row: row.local_rank),
        world_size=_same(rows, lambda row: row.world_size),
        pid=str(first.pid) if len(rows) == 1 and first.pid is not None else "",
        state=first.state,
        step=_span([row.step for row in rows if row.step is not None]),
        doing=_doing(rows, spelling.groups),
        where=_shared_where(rows, base),
        exit=_exit(first.exit, words),
        devices=plain.line(", ".join(first.devices), 40) if len(rows) == 1 else "",
        culprit=first.rank in guilty,
    )


def _ranks(known: Sequence[int], count: int) -> str:
    """`7`, `0-36, 38-63 (63)`, or `0, 2, 4, … (32)` where there are many runs; `?` for those without a rank."""
    if not known:
        return "?"
    shown = plain.ranges(known, most_runs=3)
    return shown if len(set(known)) == 1 else f"{shown.partition(' and ')[0]}{', …' * (' and ' in shown)} ({count})"


def _host(rows: Sequence[RankRow], words: Words) -> str:
    hosts = {row.host for row in rows}
    return plain.line(rows[0].host, 40) if len(hosts) == 1 else words("hosts", count=len(hosts))


def _same(rows: Sequence[RankRow], value: Callable[[RankRow], int | None]) -> str:
    values = {value(row) for row in rows}
    only = values.pop() if len(values) == 1 else None
    return "" if only is None else str(only)


def _span(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}-{high}"


def _doing(rows: Sequence[RankRow], groups: bool) -> str:
    """`backward: all_reduce #118, 12 s` or `data, 31 s`; the longest time of the line's ranks is told."""
    first = rows[0]
    what = _operation_name(rows, groups) if first.collective is not None else plain.line(first.phase or "", 40)
    times = [row.phase_for_s for row in rows if row.phase_for_s is not None]
    if not what or not times or first.state in ("finished", "crashed"):
        return what
    return f"{what}, {plain.duration(max(times))}"


def _operation_name(rows: Sequence[RankRow], groups: bool) -> str:
    collectives = [row.collective for row in rows if row.collective is not None]
    first: CollectiveRow = collectives[0]
    name = plain.line(first.op, 40)
    if rows[0].phase not in (None, "collective", first.op):
        name = f"{plain.line(rows[0].phase or '', 20)}: {name}"
    numbers = {(one.group, one.seq) for one in collectives}
    if len(numbers) != 1 or first.seq is None:
        return name
    return f"{name} #{first.seq}{_of_group(first.group) if groups else ''}"


def _of_group(key: str) -> str:
    """` of 0-3` for the group `0-3#0` of a few ranks; nothing where a number says enough."""
    members = key.partition("#")[0]
    return f" of {plain.line(members, 24)}" if key and len(members) <= _SHORT_MEMBERS and members != key else ""


def _shared_where(rows: Sequence[RankRow], base: str) -> str:
    places = {(row.where.file, row.where.line) for row in rows if row.where is not None}
    return where_text(rows[0].where, base) if len(places) == 1 else ""


def where_text(where: Where | None, base: str = "", limit: int = 200) -> str:
    """`train.py:57`, seen from the folder `base`."""
    if where is None:
        return ""
    library = plain.is_library(where.file)
    path = plain.package_path(where.file) if library else plain.short_path(where.file, base)
    return plain.line(f"{path}:{where.line}" if where.line > 0 else path, limit)


def _exit(ending: ExitRow | None, words: Words) -> str:
    if ending is None:
        return ""
    how = ending.signal or ("" if ending.code is None else words("exit.code", code=ending.code))
    return plain.line(" ".join(part for part in (how, ending.exception or "") if part), 200)
