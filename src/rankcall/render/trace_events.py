"""The events of the Trace Event Format, as dictionaries. It knows nothing of ranks.

Times are whole microseconds from the first event: the clocks that they come from tell no less than a quarter of one,
and whole numbers survive every reader's arithmetic, so that slices which follow each other never overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

_EXACT = 1 << 53  # JSON readers that know only floating-point numbers are exact up to here

Shown = dict[str, Any]  # one event
Args = dict[str, object]  # what a viewer shows of a slice; None and empty lists are left out


def to_json(value: object) -> str:
    """Compact JSON. Texts must have been made safe before: half a surrogate pair cannot be written."""
    return msgspec.json.encode(value).decode("utf-8")


def number(value: int | None) -> int | str | None:
    """A number as every reader of JSON can hold it exactly; longer ones as text."""
    if value is None or abs(value) <= _EXACT:
        return value
    return hex(value)[:40]


def process_names(pid: int, name: str, place: int, labels: str = "") -> Iterator[Shown]:
    """The name and place of a process. Viewers write `pid` behind the name."""
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": place}}
    if labels:
        yield {"ph": "M", "pid": pid, "name": "process_labels", "args": {"labels": labels}}


def track_names(pid: int, tid: int, name: str) -> Iterator[Shown]:
    """The name of a track; tracks are shown in the order of their numbers."""
    yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def span(
    pid: int, tid: int, start: int, end: int, name: str, category: str, args: Args, *, loud: bool = False
) -> Shown:
    """A slice. Those of one track must not overlap. `loud` ones are red, where the viewer lets a trace say so."""
    event = {
        "ph": "X", "pid": pid, "tid": tid, "ts": start, "dur": end - start, "name": name, "cat": category,
        "args": _known(args),
    }  # fmt: skip
    if loud:
        event["cname"] = "terrible"
    return event


def point(
    pid: int, tid: int, at: int, name: str, category: str, args: Args | None = None, *, everywhere: bool = False
) -> Shown:
    """A moment of a track; `everywhere`: of the whole trace."""
    return {
        "ph": "i", "s": "g" if everywhere else "t", "pid": pid, "tid": tid, "ts": at, "name": name, "cat": category,
        "args": _known(args or {}),
    }  # fmt: skip


def counter(pid: int, at: int, name: str, series: str, value: int) -> Shown:
    """From `at` on the value is this."""
    return {"ph": "C", "pid": pid, "ts": at, "name": name, "args": {series: value}}


def arrow(ident: int, name: str, source: tuple[int, int, int], target: tuple[int, int, int]) -> Iterator[Shown]:
    """An arrow between two slices, each given as (pid, tid, a time inside it)."""
    common = {"id": ident, "name": name, "cat": name}
    yield {"ph": "s", "pid": source[0], "tid": source[1], "ts": source[2], **common}
    # bp: it ends at the slice around that time, not at the next one.
    yield {"ph": "f", "bp": "e", "pid": target[0], "tid": target[1], "ts": target[2], **common}


def _known(args: Args) -> Args:
    return {name: value for name, value in args.items() if value is not None and value != []}
