"""Operations with one key (group and sequence number) that are not the same on all ranks.

What is compared are the operations themselves, never the lines that called them: shifted ranks meet too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from rankcall.diagnose import words
from rankcall.diagnose.drafts import TIE, Draft
from rankcall.diagnose.kinds import algorithm, demands_equal_sizes, has_root, is_gather, reduces, same_algorithm
from rankcall.diagnose.roll import Roll
from rankcall.findings import Evidence, Rival
from rankcall.snapshot import Event, Frame, Wait

Aspect = Literal["operation", "size", "root", "reduction", "dtype"]
_LOUD: tuple[Aspect, ...] = ("operation", "size", "root", "dtype")
_BYTES = {
    "float64": 8, "double": 8, "int64": 8, "long": 8, "complex64": 8, "complex128": 16, "float32": 4, "float": 4,
    "int32": 4, "int": 4, "float16": 2, "half": 2, "bfloat16": 2, "int16": 2, "uint8": 1, "int8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One rank's operation at a key."""

    rank: int
    op: str
    outer: str
    numel: int | None
    dtype: str | None
    root: int | None
    reduce_op: str | None
    site: Frame | None
    time: float
    recorded: bool


@dataclass(frozen=True)
class Difference:
    """`sides`: what each value was called with, and by whom, largest side first."""

    group: str
    seq: int
    aspect: Aspect
    sides: tuple[tuple[str, tuple[int, ...]], ...]
    calls: dict[int, Call]
    time: float

    @property
    def minority(self) -> tuple[int, ...]:
        """The smaller side's ranks, or everyone's if no side is smaller."""
        sizes = [len(ranks) for _, ranks in self.sides]
        if len(sizes) > 1 and sizes[0] > sizes[1]:
            return tuple(sorted(rank for _, ranks in self.sides[1:] for rank in ranks))
        return tuple(sorted(rank for _, ranks in self.sides for rank in ranks))

    @property
    def tie(self) -> bool:
        return len(self.minority) == sum(len(ranks) for _, ranks in self.sides)


def _from_event(rank: int, event: Event, offset: float) -> Call:
    return Call(rank, event.op, event.outer, event.numel, event.dtype, event.root, event.reduce_op, event.site,
                event.time - offset, True)  # fmt: skip


def _from_wait(rank: int, wait: Wait) -> Call:
    return Call(rank, wait.op, wait.outer, wait.numel, wait.dtype, wait.root, wait.reduce_op, wait.site,
                wait.since or 0.0, wait.source == "record")  # fmt: skip


_Raw = Event | Wait


def _by_key(roll: Roll) -> dict[tuple[str, int], dict[int, _Raw]]:
    """Every numbered collective that some ring or wait shows, by group and number, then by rank."""
    found: dict[tuple[str, int], dict[int, _Raw]] = {}
    for rank, standing in roll.standings.items():
        for event in standing.process.ring:
            if event.kind == "collective" and event.seq is not None and event.group:
                found.setdefault((event.group, event.seq), {})[rank] = event
        wait = standing.wait
        if wait is not None and wait.kind in ("collective", "device") and wait.seq is not None and wait.op:
            found.setdefault((wait.group, wait.seq), {}).setdefault(rank, wait)
    return found


def _all_alike(calls: dict[int, _Raw]) -> bool:
    """The quick way out: the same in everything that is compared."""
    every = iter(calls.values())
    first = next(every)
    return all(
        other.op == first.op
        and other.numel == first.numel
        and other.dtype == first.dtype
        and other.root == first.root
        and other.reduce_op == first.reduce_op
        for other in every
    )


def _call(roll: Roll, rank: int, raw: _Raw) -> Call:
    if isinstance(raw, Event):
        return _from_event(rank, raw, roll.standings[rank].process.clock_offset)
    return _from_wait(rank, raw)


@lru_cache(maxsize=1)  # asked several times while one snapshot is judged
def differences(roll: Roll) -> tuple[Difference, ...]:
    """All differences, oldest first; per key the most telling one."""
    found = []
    backends = {group.key: group.backend for s in roll.standings.values() for group in s.process.groups}
    for (group, seq), raw in _by_key(roll).items():
        if len(raw) < 2 or _all_alike(raw):
            continue
        calls = {rank: _call(roll, rank, one) for rank, one in raw.items()}
        difference = _compare(group, seq, calls, backends.get(group, ""))
        if difference is not None:
            found.append(difference)
    return tuple(sorted(found, key=lambda difference: (difference.time, difference.seq)))


def _compare(group: str, seq: int, calls: dict[int, Call], backend: str) -> Difference | None:
    every = list(calls.values())
    first = every[0]
    if any(not same_algorithm(first.op, other.op, backend) for other in every[1:]):
        return _difference(group, seq, "operation", calls, {c.rank: words_of(c) for c in every})
    if demands_equal(first) and demands_equal(every[-1]):
        sizes = {c.rank: str(c.numel) for c in every if c.numel is not None}
        if len(set(sizes.values())) > 1:
            return _difference(group, seq, "size", calls, sizes)
    recorded = [c for c in every if c.recorded]
    if has_root(first.op):
        roots = {c.rank: str(c.root) for c in recorded if c.root is not None}
        if len(set(roots.values())) > 1:
            return _difference(group, seq, "root", calls, roots)
    if reduces(first.op):
        reductions = {c.rank: c.reduce_op for c in recorded if c.reduce_op}
        if len(set(reductions.values())) > 1:
            return _difference(group, seq, "reduction", calls, reductions)
    if "object" not in first.outer:
        dtypes = {c.rank: c.dtype.rpartition(".")[2] for c in every if c.dtype}
        if len(set(dtypes.values())) > 1:
            return _difference(group, seq, "dtype", calls, dtypes)
    return None


def demands_equal(call: Call) -> bool:
    """True when this operation needs the same size on every rank."""
    return demands_equal_sizes(Wait(kind="collective", op=call.op, outer=call.outer))


def words_of(call: Call) -> str:
    """`all_reduce` in the user's own spelling where it is known."""
    return call.outer if call.outer and "coalesced" not in call.outer else algorithm(call.op)


def _difference(group: str, seq: int, aspect: Aspect, calls: dict[int, Call], values: dict[int, str]) -> Difference:
    by_value: dict[str, list[int]] = {}
    for rank, value in values.items():
        by_value.setdefault(value, []).append(rank)
    sides = sorted(by_value.items(), key=lambda side: (-len(side[1]), side[1]))
    return Difference(
        group, seq, aspect, tuple((value, tuple(sorted(ranks))) for value, ranks in sides), calls,
        max(call.time for call in calls.values()),
    )  # fmt: skip


def odd_by_history(roll: Roll, difference: Difference) -> tuple[int, ...]:
    """Of the ranks of a tie, those whose size at this line is not what they gave there before."""
    odd = []
    if any(call.site is None for call in difference.calls.values()):
        return ()
    for rank, call in difference.calls.items():
        earlier = [
            event.numel
            for event in roll.standings[rank].process.ring
            if event.kind == "collective"
            and event.site == call.site
            and event.numel is not None
            and (event.seq is None or event.seq < difference.seq or event.group != difference.group)
        ]
        if earlier and call.numel is not None and call.numel not in earlier:
            odd.append(rank)
    return tuple(sorted(odd))


def breaks(difference: Difference) -> bool:
    """True when the communication library hangs, aborts or answers garbage loudly because of it."""
    if difference.aspect == "dtype":
        sizes = {_BYTES.get(value, 0) for value, _ in difference.sides}
        return len(sizes) > 1
    return difference.aspect in _LOUD


def pitfall_of(difference: Difference) -> str:
    """uneven-gather, shape-mismatch or collective-mismatch."""
    if difference.aspect == "size":
        return "uneven-gather" if is_gather(next(iter(difference.calls.values())).op) else "shape-mismatch"
    return "shape-mismatch" if difference.aspect == "dtype" else "collective-mismatch"


def judge(roll: Roll, difference: Difference, waiting: Iterable[int] = ()) -> Draft:
    """The verdict (or, in a completed job, the warning) for one difference."""
    culprits, tie = difference.minority, difference.tie
    if tie and difference.aspect in ("size", "dtype"):
        odd = odd_by_history(roll, difference)
        if odd and len(odd) < len(difference.calls):
            culprits, tie = odd, False
    confidence = TIE if tie else 0.9
    calls = difference.calls
    guilty = next((calls[rank] for rank in culprits if rank in calls), next(iter(calls.values())))
    what = {
        "operation": "in different operations",
        "size": "with different numbers of elements",
        "root": "with different roots",
        "reduction": "with different reductions",
        "dtype": "with different types",
    }[difference.aspect]
    texts = [f"{words.ranks_text(ranks)} {_said(difference, value, ranks)}" for value, ranks in difference.sides[:4]]
    if not tie:
        texts.sort(key=lambda text: not text.startswith(f"{words.ranks_text(culprits)} "))
    sentence = f"the ranks meet {what} in operation {difference.seq} of their group: {', '.join(texts)}"
    if tie:
        sentence += "; nothing tells which side is wrong"
    silent = "" if breaks(difference) else " The library does not notice: the result is wrong without a word."
    return Draft(
        pitfall=pitfall_of(difference),
        culprits=culprits,
        confidence=confidence,
        proven=True,
        sentence=sentence,
        why=f"Operation {difference.seq} of group {difference.group} has to be the same call on all its ranks."
        f"{silent}{_aborted_text(roll)}",
        where=guilty.site,
        waiting=tuple(rank for rank in (*waiting, *calls) if rank not in culprits),
        rivals=_rivals(difference, tie),
        evidence=tuple(
            Evidence("record", f"{words_of(call)}, {_value(difference, call)}{words.at(call.site)}", rank,
                     roll.host(rank), call.time)
            for rank, call in sorted(calls.items())[:16]
        ),
        involved=tuple(calls),
    )  # fmt: skip


def _said(difference: Difference, value: str, ranks: tuple[int, ...]) -> str:
    call = difference.calls[ranks[0]]
    place = words.at(call.site)
    if difference.aspect == "operation":
        return f"{words.verb(ranks, 'is', 'are')} in {value}{place}"
    gives = words.verb(ranks, "gives", "give")
    unit = {"size": f"{value} elements", "root": f"root {value}", "reduction": value, "dtype": value}[difference.aspect]
    return f"{gives} {unit}{place}"


def _value(difference: Difference, call: Call) -> str:
    parts = []
    if call.numel is not None:
        parts.append(f"{call.numel} elements")
    if call.dtype:
        parts.append(call.dtype)
    if call.root is not None:
        parts.append(f"root {call.root}")
    if call.reduce_op:
        parts.append(call.reduce_op)
    return " ".join(parts) or f"number {difference.seq}"


def _rivals(difference: Difference, tie: bool) -> tuple[Rival, ...]:
    if difference.aspect == "operation":
        return (Rival("lone-collective", 0.3, "Is one of the calls reached by some ranks only?"),) if tie else ()
    if difference.aspect == "size" and tie:
        return (Rival("data-dependent-skip", 0.2, "Print the shape on every rank before the call."),)
    return ()


def _aborted_text(roll: Roll) -> str:
    aborted = [rank for rank, s in roll.standings.items() if s.ending == "abort"]
    if not aborted:
        return ""
    who = words.ranks_text(aborted)
    return f" gloo aborted {who} on receiving; the rank that aborts is not the one that is wrong."
