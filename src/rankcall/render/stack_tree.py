"""The merged stacks of all ranks as a tree on one screen, whatever the number of ranks.

Calls that follow one another without a branch are one block. In it every call of the user's has a line, and the
library's calls between them share one. Everything drawn came from a job or a file: it is checked and escaped here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rankcall.findings import Where
from rankcall.render import plain
from rankcall.render.columns import cell
from rankcall.render.page import Page, print_uncut
from rankcall.render.roll_call import where_text

MOST_LINES = 25
_MOST_CLASSES = MOST_LINES  # each needs a line of its own
_MOST_NODES = 50_000
_WIDEST_RANKS = 24
_WIDEST_PLACE = 48
_DEEPEST_INDENT = 12  # branches beyond this are drawn no further to the right
_WRAPPER_FILES = ("torch/distributed/c10d_logger.py", "contextlib.py", "typing_extensions.py", "functools.py")
_WRAPPER_FUNCTIONS = frozenset({"_call_impl", "_wrapped_call_impl"})

_WORDS = {
    "title": "Stacks of {ranks}, outermost call first; > stands apart from most",
    "title.even": "Stacks of {ranks}, outermost call first",
    "waits": "waits in {operation}",
    "own": "in its own code",
    "calls": "{count} calls",
    "thread": "thread {name}",
    "more": "{classes} more kinds of stack ({ranks}); -v shows all",
    "more.one": "1 more kind of stack ({ranks}); -v shows all",
}


class _Class(msgspec.Struct):
    ranks: str = ""
    count: int = 0
    odd: bool = False
    wait: str = ""
    phase: str = ""


class _Row(msgspec.Struct):
    depth: int
    file: str
    line: int
    function: str = ""
    user: bool = False
    ranks: str = ""
    count: int = 0
    odd: bool = False
    lines: list[int] = []
    ends: list[int] = []
    thread: str = ""


class _LeftOut(msgspec.Struct):
    classes: int = 0
    ranks: int = 0


class _Data(msgspec.Struct):
    ranks: int
    classes: list[_Class]
    tree: list[_Row]
    left_out: _LeftOut = msgspec.field(default_factory=_LeftOut)


@dataclass(slots=True)
class _Block:
    """Calls that follow one another without a branch, outermost first."""

    rows: list[_Row]
    indent: int
    children: list[_Block] = field(default_factory=list)
    classes: set[int] = field(default_factory=set)  # that come through it

    @property
    def ends(self) -> list[int]:
        """The classes whose stacks end with this block."""
        return self.rows[-1].ends


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the drawing: its text before the place, and whether it stands out."""

    ranks: str
    indent: int
    text: str
    user: bool
    odd: bool


def draw_stack_tree(console: Console, page: Page, data: object) -> None:
    """Draw what `rankcall.diagnose.stack_tree` made; nothing for what is no such thing, and for a job of one stack.
    At most MOST_LINES lines; all calls of all kinds when the page is verbose."""
    found = _read(data)
    if found is None or not found.tree or (len(found.classes) < 2 and not page.verbose):
        return
    blocks = _blocks(found)
    lines, shown = _fitting(page, blocks, found)
    odd = any(found.classes[at].odd for at in shown)
    title = _WORDS["title" if odd else "title.even"].format(ranks=page.words.ranks(found.ranks))
    console.print()
    console.print(Text(title, "bold"))
    room = min(max((cell_len(line.ranks) for line in lines), default=0), _WIDEST_RANKS, page.width // 3)
    for line in lines:
        text = f"  {'>' if line.odd else ' '} {cell(line.ranks, room)}  {'  ' * line.indent}{line.text}"
        style = ("bold red" if line.odd else "bold") if line.user else ("red" if line.odd else "dim")
        print_uncut(console, page, text.rstrip(), style)
    hidden = len(found.classes) - len(shown) + max(found.left_out.classes, 0)
    if hidden:
        ranks = sum(one.count for at, one in enumerate(found.classes) if at not in shown) + found.left_out.ranks
        more = _WORDS["more.one" if hidden == 1 else "more"].format(classes=hidden, ranks=page.words.ranks(ranks))
        console.print(Text(f"    {more}", "dim"))


def _read(data: object) -> _Data | None:
    """The data with its types checked, None where they are others: a report may come from any file."""
    try:
        found = msgspec.convert(data, _Data, strict=True)
    except (msgspec.ValidationError, RecursionError):
        return None
    if len(found.tree) > _MOST_NODES:
        return None
    depth = -1
    for row in found.tree:
        # Preorder: a row is a child of the row before it, or of one of that row's callers.
        if not 0 <= row.depth <= depth + 1 or any(not 0 <= at < len(found.classes) for at in row.ends):
            return None
        depth = row.depth
    return found


# --- blocks -----------------------------------------------------------------------------------------------------


def _blocks(data: _Data) -> list[_Block]:
    """The rows as blocks, by what follows each: exactly one call, and no stack's end, goes on with the block."""
    rows = data.tree
    children: list[list[int]] = [[] for _ in rows]
    roots: list[int] = []
    above: list[int] = []
    for at, row in enumerate(rows):
        del above[row.depth :]
        (children[above[-1]] if above else roots).append(at)
        above.append(at)
    made: list[_Block] = []
    top: list[_Block] = []
    waiting: list[tuple[int, _Block | None]] = [(at, None) for at in reversed(roots)]
    while waiting:
        at, parent = waiting.pop()
        block = _Block([rows[at]], parent.indent + 1 if parent is not None else 0)
        while len(children[at]) == 1 and not rows[at].ends:
            at = children[at][0]
            block.rows.append(rows[at])
        (parent.children if parent is not None else top).append(block)
        made.append(block)
        waiting += [(child, block) for child in reversed(children[at])]
    for block in reversed(made):
        block.classes = set(block.ends).union(*(child.classes for child in block.children))
    return top


# --- lines ------------------------------------------------------------------------------------------------------


def _fitting(page: Page, blocks: Sequence[_Block], data: _Data) -> tuple[list[_Line], set[int]]:
    """The lines, and the classes that they show: with ever fewer calls a block, then with fewer classes, until they
    fit."""
    everything = set(range(len(data.classes)))
    if page.verbose:
        return list(_lines(page, blocks, data, everything, 0)), everything
    by_weight = sorted(everything, key=lambda at: (at != 0, not data.classes[at].odd, at))
    kept = by_weight[:_MOST_CLASSES]
    while True:
        lines: list[_Line] = []
        for most in (5, 3, 2, 1):
            lines = list(_lines(page, blocks, data, set(kept), most))
            if len(lines) <= MOST_LINES - 2:
                return lines, set(kept)
        if len(kept) <= 1:
            return lines[: MOST_LINES - 2], set(kept)
        kept = kept[:-1]


def _lines(page: Page, blocks: Sequence[_Block], data: _Data, classes: set[int], most: int) -> Iterator[_Line]:
    """The lines of the blocks that these classes come through, `most` calls of the user's in each; 0: all calls."""
    waiting = [block for block in reversed(blocks) if block.classes & classes]
    while waiting:
        block = waiting.pop()
        yield from _block_lines(page, block, data, classes, most)
        waiting += [child for child in reversed(block.children) if child.classes & classes]


def _block_lines(page: Page, block: _Block, data: _Data, classes: set[int], most: int) -> Iterator[_Line]:
    first = block.rows[0]
    ranks, indent = plain.line(first.ranks, 200), min(block.indent, _DEEPEST_INDENT)
    if first.thread and first.depth == 0:
        yield _Line(ranks, indent, _WORDS["thread"].format(name=plain.line(first.thread, 60)), False, first.odd)
        ranks = ""
    ends = [data.classes[at] for at in block.ends if at in classes]
    alone = len({_doing(one) for one in ends}) == 1
    parts = list(_parts(block.rows, most))
    for at, part in enumerate(parts):
        text = _text(page, part)
        if alone and at == len(parts) - 1 and (doing := _doing(ends[0])):
            text = f"{text}  [{doing}]" if part[-1].user else f"[{doing}] {text}"
        yield _Line(ranks, indent, text, part[-1].user, first.odd)
        ranks = ""
    if not alone:
        for one in ends:
            yield _Line(plain.line(one.ranks, 200), indent + 1, f"[{_doing(one) or _WORDS['own']}]", False, one.odd)


def _doing(one: _Class) -> str:
    """`waits in all_reduce` or `data`."""
    if one.wait:
        return _WORDS["waits"].format(operation=plain.line(one.wait, 60))
    return plain.line(one.phase, 20)


def _parts(rows: Sequence[_Row], most: int) -> Iterator[list[_Row]]:
    """What shares a line: each of the user's calls alone, the library's between them together. Of more than `most` of
    the user's calls, the outer ones share a line with all that is between them."""
    if most == 0:
        yield from ([row] for row in rows)
        return
    rows = [row for row in rows if row.user or not _is_wrapper(row)] or rows
    user = [at for at, row in enumerate(rows) if row.user]
    start = 0
    if len(user) > most:
        start = user[-most]
        yield list(rows[:start])
    together: list[_Row] = []
    for row in rows[start:]:
        if not row.user:
            together.append(row)
            continue
        if together:
            yield together
            together = []
        yield [row]
    if together:
        yield together


def _is_wrapper(row: _Row) -> bool:
    """A call that only passes on another one."""
    return row.file.endswith(_WRAPPER_FILES) or row.function.rpartition(".")[2] in _WRAPPER_FUNCTIONS


def _text(page: Page, part: Sequence[_Row]) -> str:
    """`train.py:48  main  loss.backward()`, or for several calls the outermost and the innermost one."""
    outer, inner = part[0], part[-1]
    if len(part) == 1:
        where = Where(inner.file, inner.line, inner.function)
        code = plain.code(page.sources.at(where)).strip() if inner.user else ""
        return "  ".join(one for one in (_place(page, inner), plain.line(inner.function, 60), code) if one)
    ends = f"{plain.line(outer.function, 50)} ... {plain.line(inner.function, 50)}"
    return f"{ends}  {_place(page, inner)}  ({_WORDS['calls'].format(count=len(part))})"


def _place(page: Page, row: _Row) -> str:
    """`train.py:48`, `torch/nn/functional.py:7`, `libtorch_cpu.so`, or `train.py:48,52` where the stacks differ."""
    native = row.file.removeprefix("<native ").removesuffix(">") if row.file.startswith("<native ") else ""
    where = Where(native or row.file, 0 if len(row.lines) > 1 else row.line)
    place = where_text(where, page.base)
    if len(row.lines) > 1:
        place += ":" + ",".join(str(number) for number in row.lines[:3]) + (",..." if len(row.lines) > 3 else "")
    return cell(place, _WIDEST_PLACE, "end") if cell_len(place) > _WIDEST_PLACE else place
