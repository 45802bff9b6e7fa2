"""A rank's own habit: what it did in every step, and where it did something else.

Sends and receives have a partner, not a group: nobody else makes the same calls. But a step is like the step before.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from rankcall.diagnose.readers.dumps.members import Fleet, Member, global_rank
from rankcall.diagnose.readers.dumps.reduce import P2P
from rankcall.diagnose.readers.dumps.rings import Ring
from rankcall.diagnose.readers.dumps.to_snapshot import event_at
from rankcall.snapshot import Event, Shift

LONGEST_STEP = 4096  # calls
LONG_ENOUGH = 12  # calls that have to agree around the one that is different
_CHECKED_FIRST = 16
_SHOWN_RANKS = 16
_COLLECTIVES = -1  # any run of collectives: some come only every few steps


@dataclass(eq=False)
class _Stream:
    """A rank's sends and receives, and a mark for every run of collectives between them."""

    member: Member
    ring: Ring
    tokens: array[int]
    places: list[int]
    kinds: frozenset[object]  # its sends and receives without the lines that call them: equal for one stage


def broken(fleet: Fleet, ranks: Iterable[int]) -> list[Shift]:
    """Those of the ranks that made other sends and receives than the ranks that do the same work, or, where there are
    none, than they did themselves in the steps before."""
    asked = set(ranks)
    if not asked:
        return []
    numbers: dict[tuple[object, ...], int] = {}
    alike: dict[frozenset[object], list[_Stream]] = {}
    for member in fleet.members.values():
        if not member.stale:
            stream = _stream(fleet, member, member.rings[0], numbers)
            alike.setdefault(stream.kinds, []).append(stream)
    found: list[Shift] = []
    for streams in alike.values():
        if not any(stream.member.rank in asked for stream in streams):
            continue
        if len(streams) > 2:
            found += _odd_ones(fleet, streams, asked)
        else:
            mine = [stream for stream in streams if stream.member.rank in asked]
            if len(streams) == 2 and _end(streams[0], streams[1]) is None:
                # They end alike; if one of them alone is part of the trouble and has begun more or less, it is that.
                found += _two_counts(streams, mine)
                continue
            own = [shift for stream in streams if stream.member.rank in asked
                   and (shift := _against_itself(fleet, stream)) is not None]  # fmt: skip
            if not own and len(mine) == 1 and len(streams) == 2:
                # The two disagree, and only this one is part of the trouble.
                other = next(stream for stream in streams if stream is not mine[0])
                own = [_differs(fleet, mine[0], other, end) for end in [_end(mine[0], other)] if end is not None]
            found += own
    # A call that is left out or added is found by what stands on both sides of it; ranks that merely differ may have
    # been stopped at another place.
    sure = [shift for shift in found if shift.kind in ("skipped", "extra")]
    return sure or found


def _stream(fleet: Fleet, member: Member, ring: Ring, numbers: dict[tuple[object, ...], int]) -> _Stream:
    calls = fleet.shared.calls
    known = [member.key(ring, number) for number in range(len(ring.groups))]
    roles = [fleet.groups[name].role if name is not None else "" for name in known]
    tokens: list[int] = []
    places: list[int] = []
    kinds: set[object] = set()
    for place, flag in enumerate(ring.flags):
        if not flag & P2P:
            if not tokens or tokens[-1] != _COLLECTIVES:
                tokens.append(_COLLECTIVES)
                places.append(place)
            continue
        call = calls[ring.calls[place]]
        if call.is_p2p:
            kind = (roles[ring.group[place]], call.op, call.source, call.target)
            kinds.add(kind)
            key = (*kind, fleet.shared.site_of(ring.stacks[place]))
            tokens.append(numbers.setdefault(key, len(numbers)))
            places.append(place)
    return _Stream(member, ring, array("i", tokens), places, frozenset(kinds))


# --- against ranks that do the same work -----------------------------------------------------------------------------


def _odd_ones(fleet: Fleet, streams: list[_Stream], asked: set[int]) -> list[Shift]:
    """All of them stop at one place of the program, so that their ends are the same, back to where one differs."""
    base = max(streams[:3], key=lambda one: sum(1 for other in streams if _end(other, one) is None))
    odd = [(stream, end) for stream in streams if (end := _end(stream, base)) is not None]
    if not odd:
        return _by_count(streams, asked)
    if 2 * len(odd) >= len(streams):
        return []
    return [_differs(fleet, stream, base, end) for stream, end in odd if stream.member.rank in asked]


def _by_count(streams: list[_Stream], asked: set[int]) -> list[Shift]:
    """They stopped at one place and end alike: who has begun more or fewer operations than most did so before the
    rings began."""
    counts = Counter(begun for stream in streams if (begun := stream.ring.begun) is not None)
    if len(counts) < 2:
        return []
    (usual, most), *_ = counts.most_common(1)
    if 2 * most <= len(streams):
        return []
    others = tuple(sorted(stream.member.rank for stream in streams if stream.ring.begun == usual))
    return [
        _counted(stream, begun - usual, others)
        for stream in streams
        if (begun := stream.ring.begun) is not None and begun != usual and stream.member.rank in asked
    ]


def _two_counts(streams: list[_Stream], mine: list[_Stream]) -> list[Shift]:
    if len(mine) != 1:
        return []
    other = next(stream for stream in streams if stream is not mine[0])
    begun, usual = mine[0].ring.begun, other.ring.begun
    if begun is None or usual is None or begun == usual:
        return []
    return [_counted(mine[0], begun - usual, (other.member.rank,))]


def _counted(stream: _Stream, more: int, others: tuple[int, ...]) -> Shift:
    return Shift(
        kind="extra" if more > 0 else "skipped",
        ranks=(stream.member.rank,),
        others=others[:_SHOWN_RANKS],
        group=next(iter(stream.member.lanes), ""),
        count=abs(more),
    )


def _end(one: _Stream, base: _Stream) -> int | None:
    """How many calls the two end with alike, if they differ in the one before; None: as far as both reach."""
    length = min(len(one.tokens), len(base.tokens))
    for count in range(length):
        if one.tokens[-1 - count] != base.tokens[-1 - count]:
            return count
    return None


def _differs(fleet: Fleet, odd: _Stream, base: _Stream, end: int) -> Shift:
    mine, theirs = odd.tokens[: len(odd.tokens) - end], base.tokens[: len(base.tokens) - end]
    own = event_at(fleet, odd.member, odd.ring, odd.places[len(mine) - 1])
    expected = event_at(fleet, base.member, base.ring, base.places[len(theirs) - 1])
    skipped, extra = _same_end(mine, theirs[:-1]), _same_end(mine[:-1], theirs)
    expected = _for_member(fleet, odd, base, len(theirs) - 1, expected)
    return _made(odd, own, expected, skipped, extra, (base.member.rank,), own if skipped else None)


def _for_member(fleet: Fleet, odd: _Stream, base: _Stream, at: int, event: Event) -> Event:
    """The other rank's call as it would be this rank's: with its own partner."""
    call = fleet.shared.calls[base.ring.calls[base.places[at]]]
    if not call.is_p2p or not event.group:
        return event
    role = fleet.groups[event.group].role
    key = next((key for key in odd.member.lanes if fleet.groups[key].role == role), event.group)
    return msgspec.structs.replace(event, group=key, peer=global_rank(fleet, key, call.peer))


def _same_end(one: Sequence[int], other: Sequence[int]) -> bool:
    length = min(len(one), len(other), LONG_ENOUGH)
    return length > 0 and one[-length:] == other[-length:]


def _made(
    stream: _Stream, own: Event, expected: Event, skipped: bool, extra: bool, others: tuple[int, ...],
    last: Event | None,
) -> Shift:  # fmt: skip
    kind: Literal["skipped", "extra", "differs"]
    calls: tuple[Event, ...]
    if skipped and expected.kind in ("send", "recv"):
        kind, calls = "skipped", (expected,)
    elif extra and own.kind in ("send", "recv"):
        kind, calls = "extra", (own,)
    else:
        kind, calls = "differs", (own, expected)
    return Shift(kind=kind, ranks=(stream.member.rank,), others=others, group=own.group or expected.group,
                 count=0 if kind == "differs" else 1, calls=calls, last_common=last)  # fmt: skip


# --- against its own steps -------------------------------------------------------------------------------------------


def _against_itself(fleet: Fleet, stream: _Stream) -> Shift | None:
    found = leaves_habit(stream.tokens)
    if found is None:
        return None
    at, period = found
    now, before = stream.tokens[at:], stream.tokens[at - period :]
    own = event_at(fleet, stream.member, stream.ring, stream.places[at])
    # The habit's call is of an earlier step: who and where are right, its number is not.
    expected = event_at(fleet, stream.member, stream.ring, stream.places[at - period])
    last = event_at(fleet, stream.member, stream.ring, stream.places[at - 1])
    return _made(stream, own, expected, _same_rest(now, before[1:]), _same_rest(now[1:], before), (), last)


def leaves_habit(tokens: array[int]) -> tuple[int, int] | None:
    """Where a sequence that repeats itself stops to, and the length of what it repeated; None if it never did."""
    best: tuple[int, int] | None = None
    length = len(tokens)
    for period in range(1, min(length // 2, LONGEST_STEP) + 1):
        if tokens[:_CHECKED_FIRST] != tokens[period : period + _CHECKED_FIRST]:
            run = _run(tokens, period, _CHECKED_FIRST)
        else:
            run = _run(tokens, period, length)
        at = run + period
        if at >= length and run >= max(length // 4, _CHECKED_FIRST // 2):
            return None  # it goes on to the end
        if run >= period and length - at <= 2 * period and (best is None or at > best[0]):
            best = (at, period)
    return None if best is None or best[0] >= length else best


def _run(tokens: array[int], period: int, most: int) -> int:
    """How many calls from the first on are the same one period later."""
    count = 0
    end = min(len(tokens) - period, most)
    step = 256
    while count + step <= end and tokens[count : count + step] == tokens[count + period : count + period + step]:
        count += step
    while count < end and tokens[count] == tokens[count + period]:
        count += 1
    return count


def _same_rest(one: Sequence[int], other: Sequence[int]) -> bool:
    length = min(len(one), len(other))
    return length > 0 and one[:length] == other[:length]
