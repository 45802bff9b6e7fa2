"""A page of the pitfall catalogue, and the list of all names, as text for a person."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rankcall.pitfalls import Page as PitfallPage
from rankcall.pitfalls import headings
from rankcall.render import plain
from rankcall.render.page import console_for, text_of

_LIST_MARK = "- "
_FENCE = "```"


def render_page(page: PitfallPage, *, width: int = 100, color: bool = False) -> str:
    """The whole page: title, sections, fixes numbered."""
    console = console_for(width, color)
    titles = headings(page.lang)
    head = Text(page.name, "bold")
    head.append(f": {page.title}", "bold")
    console.print(head)
    console.print(Text(f"{page.layer}; {', '.join(page.seen_by)}", "dim"))
    for field, text in (("happens", page.happens), ("why", page.why), ("tell", page.tell)):
        _heading(console, titles[field])
        _markdown(console, text.split("\n"))
    _heading(console, titles["fix"])
    console.print(_marked((f"{number}.", fix) for number, fix in enumerate(page.fix, 1)))
    if page.example:
        _heading(console, titles["example"])
        _markdown(console, page.example.split("\n"))
    if page.related:
        _heading(console, titles["related"])
        console.print(Padding(Text(", ".join(page.related)), (0, 0, 0, 2)))
    _heading(console, titles["sources"])
    console.print(_marked(("-", source) for source in page.sources))
    return text_of(console)


def render_names(layers: Sequence[tuple[str, Sequence[tuple[str, str]]]], *, width: int, color: bool) -> str:
    """Every (name, title), layer by layer."""
    console = console_for(width, color)
    longest = max((len(name) for _, pages in layers for name, _ in pages), default=0)
    for at, (layer, pages) in enumerate(layers):
        if at:
            console.print()
        console.print(Text(layer, "bold"))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, min_width=longest + 2)
        grid.add_column()
        for name, title in pages:
            grid.add_row(Text(f"  {name}", "cyan"), Text(title))
        console.print(grid)
    return text_of(console)


def _heading(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, "bold"))


def _marked(items: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for mark, text in items:
        grid.add_row(Text(f"  {mark}"), _inline(text))
    return grid


def _markdown(console: Console, lines: Sequence[str]) -> None:
    """The little Markdown that pages use: paragraphs, lists, fenced code and `code` in a line."""
    fenced = False
    for line in lines:
        if line.startswith(_FENCE):
            fenced = not fenced
        elif fenced:
            console.print(Text(f"    {plain.code(line)}", "green", no_wrap=True, overflow="ellipsis"))
        elif line.startswith(_LIST_MARK):
            console.print(_marked([("-", line.removeprefix(_LIST_MARK))]))
        elif line:
            console.print(Padding(_inline(line), (0, 0, 0, 2)))
        else:
            console.print()


def _inline(text: str) -> Text:
    """Text whose `code` is coloured; the backticks stay, since a pipe shows no colours."""
    styled = Text()
    for at, part in enumerate(plain.paragraph(text).split("`")):
        code = at % 2 == 1
        styled.append(f"`{part}`" if code else part, "cyan" if code else "")
    return styled
