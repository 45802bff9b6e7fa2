"""How ranks, places and durations are spelled in sentences. No judgement here."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from rankcall.snapshot import Event, Frame, Wait

MOST_SPANS = 8  # a sentence that names more runs of ranks than this is not read any more


def span_text(numbers: Iterable[int]) -> str:
    """`0-36, 38-63`: runs of numbers, sorted, shortened in the middle when there are too many."""
    ordered = sorted(set(numbers))
    spans: list[tuple[int, int]] = []
    for number in ordered:
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    texts = [_span(first, last) for first, last in spans]
    if len(texts) > MOST_SPANS:
        texts = [*texts[: MOST_SPANS - 1], f"… {texts[-1]} ({len(ordered)} in all)"]
    return ", ".join(texts)


def _span(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}, {last}" if last == first + 1 else f"{first}-{last}"


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 2` or `ranks 0-36, 38-63`."""
    ordered = sorted(set(ranks))
    return f"rank {ordered[0]}" if len(ordered) == 1 else f"ranks {span_text(ordered)}"


def verb(ranks: Sequence[int] | frozenset[int], one: str, many: str) -> str:
    """The form of a verb that goes with this many ranks."""
    return one if len(ranks) == 1 else many


def place(frame: Frame | None) -> str:
    """`train.py:57`, or an empty text for an unknown place."""
    if frame is None or not frame.file:
        return ""
    name = PurePosixPath(frame.file).name
    return f"{name}:{frame.line}" if frame.line > 0 else name


def at(frame: Frame | None) -> str:
    """` at train.py:57`, or nothing."""
    text = place(frame)
    return f" at {text}" if text else ""


def count(number: int, noun: str) -> str:
    """`1 step`, `3 steps`, `2 batches`."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun}es" if noun.endswith(("ch", "s")) else f"{noun}s"
    return f"{number} {plural}"


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 120:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 99`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def operation(event: Event | Wait) -> str:
    """What the user called: `barrier`, `all_gather_object`, `send to rank 3`."""
    kind = event.kind
    if kind in ("send", "recv") or kind == "p2p":
        direction = event.op or str(kind)
        towards = "to" if direction.startswith(("send", "isend")) else "from"
        return f"{direction} {towards} rank {event.peer}" if event.peer is not None else direction
    if kind == "init":
        return "init_process_group"
    if kind == "new-group":
        return "new_group"
    if kind == "eval-forward":
        return "forward (evaluation)"
    if kind == "step":
        return "optimizer step"
    if kind in ("forward", "backward", "save", "load", "batch", "compile"):
        return str(kind)
    return event.outer or event.op.rpartition(":")[2] or str(kind)


def capital(text: str) -> str:
    """The text as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def sentence_list(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def shorten(text: str, most: int = 300) -> str:
    """The first line of a text, cut at `most` characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= most else line[: most - 1] + "…"
