"""A rank that skipped a call, or made one more, long ago: its ring shows the others' calls, moved.

After it, its calls pair with the others' neighbours and finish, as long as they are alike: nothing hangs until they
differ or run out. Only the order over several groups, the sizes and the lines that called tell where it happened.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rankcall.diagnose.readers.dumps.members import Fleet, Lane, Member, ranks_of
from rankcall.diagnose.readers.dumps.rings import Ring
from rankcall.diagnose.readers.dumps.stages import stage
from rankcall.diagnose.readers.dumps.to_snapshot import event_at
from rankcall.snapshot import Shift

MOST_SHIFTED = 256  # calls: more than a step of most programs
LONG_ENOUGH = 12  # calls that have to agree again after the moved ones; fewer only where the rings end
SHORT_ENOUGH = 3  # and never fewer than these: two calls in the other order look moved as well
MOST_SIBLINGS = 64
LATELY = 64  # calls before the one that hangs
_ALIKE_FIRST = (64, 16, 4)  # calls that the streams of one program have in common at their beginning
_SHOWN_CALLS, _SHOWN_RANKS = 4, 16


@dataclass(eq=False)
class _Stream:
    """A rank's calls from a place on that all compared ranks know, as numbers that are equal for equal calls."""

    member: Member
    lane: Lane
    start: int
    tokens: array[int]
    places: Sequence[int]
    stage: frozenset[object]  # its sends and receives: equal for ranks at one stage of a pipeline


def find(fleet: Fleet, keys: Sequence[str], siblings: int = MOST_SIBLINGS) -> list[Shift]:
    """The shifts behind waits in these groups; at most one for each group. `siblings`: how many ranks of other groups
    of the same role each is compared with."""
    roles = {fleet.groups[key].role for key in keys}
    found: list[Shift] = []
    done: set[tuple[int, ...]] = set()
    known = _Tokens(fleet, roles)
    for key in keys:
        shift = _in_group(fleet, key, known, siblings)
        if shift is not None and shift.ranks not in done:
            done.add(shift.ranks)
            found.append(shift)
    return found


def against_itself(fleet: Fleet, ranks: Iterable[int], group: str) -> list[Shift]:
    """Those of the ranks that lately made a call which is not what followed the same calls in their own earlier steps.

    For what two ranks alone disagree about: nobody else does the same work. `group` is the one that it is about.
    """
    known = _Tokens(fleet, {about.role for about in fleet.groups.values()}, pairs=True)
    lately: list[int] = []
    now: list[int] = []
    asked = 0
    for rank in ranks:
        member = fleet.members.get(rank)
        lane = member.lanes.get(group) if member is not None else None
        if member is None or lane is None or member.stale:
            continue
        asked += 1
        tokens, places = known.of(member, lane.ring)
        at = _first_open(fleet, member, lane.ring, places)
        if _surprises(tokens, at, (32, 16, 8, 4, 2, 1)):
            now.append(rank)
        if any(_surprises(tokens, earlier, (16, 8)) for earlier in range(max(0, at - LATELY), at + 1)):
            lately.append(rank)
    odd = now if 0 < len(now) < asked else lately if len(lately) < asked else []
    return [Shift(kind="differs", ranks=(rank,), others=(), group=group, count=0) for rank in odd]


def _surprises(tokens: array[int], at: int, lengths: Sequence[int]) -> bool:
    """Whether the call at this place is not the one that followed the same calls the last time."""
    if at >= len(tokens):
        return False
    expected = _after_same(tokens, at, lengths)
    return expected is not None and tokens[expected] != tokens[at]


def _first_open(fleet: Fleet, member: Member, ring: Ring, places: Sequence[int]) -> int:
    """The first of these calls that is not done."""
    still = set(ring.open)
    for at, place in enumerate(places):
        key = member.key(ring, ring.group[place])
        if place in still and key is not None and ring.seq[place] > fleet.reached.get(key, -1):
            return at
    return len(places)


def _after_same(tokens: array[int], at: int, lengths: Sequence[int]) -> int | None:
    """The place of what followed the last time the same calls were made: the longest memory of them counts."""
    for length in lengths:
        if at <= length:
            continue
        habit = tokens[at - length : at]
        for end in range(at - 1, length - 1, -1):
            if tokens[end - length : end] == habit:
                return end
    return None


def _in_group(fleet: Fleet, key: str, known: _Tokens, siblings: int) -> Shift | None:
    members = [rank for rank in ranks_of(fleet.groups[key].runs) if rank in fleet.members]
    lanes = [(fleet.members[rank], fleet.members[rank].lanes.get(key)) for rank in members]
    present = [(member, lane) for member, lane in lanes if lane is not None and known.places(lane)]
    if len(present) < 2:
        return None
    start = max(lane.ring.seq[known.places(lane)[0]] for _, lane in present)
    streams = [stream for member, lane in present if (stream := known.stream(member, lane, start)) is not None]
    streams += _siblings(fleet, key, start, known, {member.rank for member, _ in present}, siblings)
    for alike in _ALIKE_FIRST:
        shift = _first_shift(fleet, key, _one_program(streams, alike), known)
        if shift is not None:
            return shift
    return None


class _Tokens:
    """Numbers for calls: equal for the same operation of the same role, called from the same line."""

    def __init__(self, fleet: Fleet, roles: set[str], *, pairs: bool = False) -> None:
        self._fleet, self._roles, self._pairs = fleet, roles, pairs
        self._numbers: dict[tuple[object, ...], int] = {}
        self._whole: dict[int, tuple[array[int], list[int]]] = {}

    def places(self, lane: Lane) -> list[int]:
        return lane.ring.places(lane.number)

    def stream(self, member: Member, lane: Lane, seq: int) -> _Stream | None:
        """The calls from the collective `seq` of this lane on; None where the ring does not hold it."""
        ring = lane.ring
        start = next((place for place in self.places(lane) if ring.seq[place] >= seq), None)
        if start is None or ring.seq[start] != seq:
            return None
        tokens, places = self.of(member, ring)
        first = next((at for at, place in enumerate(places) if place >= start), len(places))
        return _Stream(member, lane, start, tokens[first:], places[first:], stage(self._fleet, member, ring))

    def of(self, member: Member, ring: Ring) -> tuple[array[int], list[int]]:
        """All calls of a ring in these roles: their numbers and places."""
        if id(ring) in self._whole:
            return self._whole[id(ring)]
        fleet = self._fleet
        roles: dict[int, str | None] = {}
        for number in range(len(ring.groups)):
            key = member.key(ring, number)
            role = fleet.groups[key].role if key is not None else None
            roles[number] = role if role in self._roles else None
        known: dict[tuple[int, int, int], int] = {}
        keys = list(zip(ring.group, ring.calls, ring.stacks, strict=True))
        for number, call_number, stack in set(keys):
            call, site = fleet.shared.calls[call_number], fleet.shared.site_of(stack)
            role = roles[number]
            if role is None or (call.is_p2p and not self._pairs) or call.spelling == "coalesced":
                known[(number, call_number, stack)] = -1
                continue
            place = (site.file, site.line) if site is not None else None
            ends = (call.op, call.source, call.target) if call.is_p2p else None
            token = self._numbers.setdefault((role, call.compared, ends, place), len(self._numbers))
            known[(number, call_number, stack)] = token
        numbers = list(map(known.__getitem__, keys))
        places = [at for at, token in enumerate(numbers) if token >= 0]
        self._whole[id(ring)] = (array("i", [numbers[at] for at in places]), places)
        return self._whole[id(ring)]


def _siblings(fleet: Fleet, key: str, start: int, known: _Tokens, members: set[int], most: int) -> list[_Stream]:
    """Ranks that do the same in a group of the same role: they tell which of two that differ is the odd one."""
    role = fleet.groups[key].role
    found: list[_Stream] = []
    for rank, member in fleet.members.items():
        if rank in members or member.stale:
            continue
        for other, lane in member.lanes.items():
            if fleet.groups[other].role == role and (stream := known.stream(member, lane, start)) is not None:
                found.append(stream)
                break
        if len(found) >= most:
            break
    return found


def _one_program(streams: list[_Stream], alike: int) -> list[_Stream]:
    """The largest set of streams that begin with the same calls: stages of a pipeline run different programs."""
    sets: dict[tuple[frozenset[object], bytes], list[_Stream]] = {}
    for stream in streams:
        if len(stream.tokens) > alike:
            sets.setdefault((stream.stage, stream.tokens[:alike].tobytes()), []).append(stream)
    return max(sets.values(), key=len, default=[])


def _first_shift(fleet: Fleet, key: str, streams: list[_Stream], known: _Tokens) -> Shift | None:
    if len(streams) < 3:
        return None
    base = _majority(streams)
    odd: dict[int, list[tuple[_Stream, int, int]]] = {}
    for stream in streams:
        at = _first_difference(base.tokens, stream.tokens)
        if at is None:
            continue
        moved = _moved(base.tokens, stream.tokens, at) or 0  # 0: they differ, and never agree again
        if at < 2 * abs(moved):
            continue  # too little in common before it: another program
        if _matters(fleet, key, stream, base, at, moved or 1):
            odd.setdefault(at, []).append((stream, at, moved))
    if not odd:
        return None
    first = odd[min(odd)]
    moved = first[0][2]
    ranks = tuple(sorted(stream.member.rank for stream, _, count in first if count == moved))
    if 2 * len(ranks) >= len(streams):
        return None
    return _shift(fleet, key, first[0][0], base, first[0][1], moved, ranks, streams)


def _majority(streams: list[_Stream]) -> _Stream:
    """A stream that most others agree with the longest."""
    candidates = [streams[0], streams[len(streams) // 2], streams[-1]]
    best, most = candidates[0], -1
    for candidate in candidates:
        agree = sum(1 for stream in streams if _first_difference(candidate.tokens, stream.tokens) is None)
        if agree > most:
            best, most = candidate, agree
    return best


def _first_difference(one: array[int], other: array[int]) -> int | None:
    """The first place at which both have a call and it differs."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return None
    low, high = 0, length  # the difference lies in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _moved(base: array[int], odd: array[int], at: int) -> int | None:
    """How many calls of the base the odd one left out (positive) or made in addition (negative); None: neither."""
    for count in range(1, MOST_SHIFTED + 1):
        if _agree(base, at + count, odd, at):
            return count
        if _agree(base, at, odd, at + count):
            return -count
    return None


def _swapped(base: _Stream, odd: _Stream, at: int) -> bool:
    one, other = base.tokens[at : at + 2], odd.tokens[at : at + 2]
    return len(one) == len(other) == 2 and one[0] == other[1] and one[1] == other[0]


def _agree(base: array[int], mine: int, odd: array[int], yours: int) -> bool:
    left = min(len(base) - mine, len(odd) - yours, LONG_ENOUGH)
    return left >= SHORT_ENOUGH and base[mine : mine + left] == odd[yours : yours + left]


def _matters(fleet: Fleet, key: str, stream: _Stream, base: _Stream, at: int, moved: int) -> bool:
    """Whether the moved calls belong to the group in question (or its like): else they are this rank's own affair."""
    source = base if moved > 0 else stream
    role = fleet.groups[key].role
    for place in source.places[at : at + abs(moved)]:
        found = source.member.key(source.lane.ring, source.lane.ring.group[place])
        if found is not None and fleet.groups[found].role == role:
            return True
    return False


def _shift(
    fleet: Fleet, key: str, odd: _Stream, base: _Stream, at: int, moved: int, ranks: tuple[int, ...],
    streams: list[_Stream],
) -> Shift:  # fmt: skip
    source = base if moved > 0 else odd
    places = source.places[at : at + max(1, abs(moved))]
    ring = source.lane.ring
    calls = tuple(event_at(fleet, source.member, ring, place) for place in places[:_SHOWN_CALLS])
    if not moved:
        calls += (event_at(fleet, base.member, base.lane.ring, base.places[at]),)
    before = event_at(fleet, odd.member, odd.lane.ring, odd.places[at - 1]) if at else None
    others = sorted(stream.member.rank for stream in streams if stream.member.rank not in ranks)
    own = odd.member.lanes
    group = key if key in own else next((k for k in own if fleet.groups[k].role == fleet.groups[key].role), key)
    return Shift(
        kind="skipped" if moved > 0 else "extra" if moved < 0 else "swapped" if _swapped(base, odd, at) else "differs",
        ranks=ranks,
        others=tuple(others[:_SHOWN_RANKS]),
        group=group,
        count=abs(moved),
        calls=calls,
        last_common=before,
    )
