"""Aligned columns that give way in a chosen order when the screen is narrow. It knows nothing of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len, set_cell_size

GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column. What is longer than `smallest` may be cut, and `keep` says which end stays.

    Columns of higher `yields` give way first; one whose `smallest` is 0 may be left out altogether.
    """

    title: str
    cells: tuple[str, ...]
    smallest: int
    yields: int
    keep: Literal["start", "end"] = "start"

    @property
    def natural(self) -> int:
        return max(cell_len(text) for text in (self.title, *self.cells))


def fit(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    """The columns that say something, each with the width it gets: with the gaps at most `width`."""
    said = [column for column in columns if any(column.cells)]
    widths = [column.natural for column in said]
    over = sum(widths) + GAP * (len(said) - 1) - width
    for at in sorted(range(len(said)), key=lambda at: -said[at].yields):
        if over <= 0:
            break
        least = max(said[at].smallest, cell_len(said[at].title)) if said[at].smallest else 0
        given = max(min(over, widths[at] - least), 0)
        if least == 0 and given < widths[at] and widths[at] - given < cell_len(said[at].title):
            given = widths[at]
        widths[at] -= given
        over -= given + (GAP if widths[at] == 0 else 0)
    return [(column, room) for column, room in zip(said, widths, strict=True) if room > 0]


def cell(text: str, room: int, keep: Literal["start", "end"] = "start") -> str:
    """`text` in exactly `room` cells, cut with an ellipsis where it is longer."""
    if cell_len(text) <= room:
        return set_cell_size(text, room)
    if keep == "start":
        return set_cell_size(set_cell_size(text, room - 1).rstrip() + "…", room)
    tail = text
    while cell_len(tail) > room - 1:
        tail = tail[1:]
    return set_cell_size("…" + tail, room)
