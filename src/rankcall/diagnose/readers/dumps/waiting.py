"""What each rank waits in: the oldest of its operations that is not done.

Operations are put on a device's queue and finish in their order, whatever the host does meanwhile. In a program whose
ranks agree on the order, the oldest operation that is not done anywhere has been begun by nobody who waits in another
one; so the rank that keeps it back waits nowhere.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from rankcall.diagnose.readers.dumps.members import Fleet, Lane, Member, global_rank, is_done
from rankcall.diagnose.readers.dumps.reduce import P2P
from rankcall.diagnose.readers.dumps.rings import Ring


@dataclass(frozen=True, slots=True)
class Open:
    """An operation that is not done, or of which the dump does not tell (`unsure`).

    For point-to-point: the other side's global rank; which of its kind this call is, counted from a moment that both
    sides know (None: there is none); and the place in the other's ring of the call that answers it, or of the last
    one that could, with its number (None: the other side has made none).
    """

    ring: Ring
    place: int
    key: str
    peer: int | None = None
    nth: int | None = None
    answer: tuple[Ring, int, int] | None = None
    unsure: bool = False

    @property
    def began(self) -> int:
        """Nanoseconds."""
        return self.ring.created[self.place]

    @property
    def answered(self) -> bool:
        """The other side has made the call that meets this one."""
        return self.nth is not None and self.answer is not None and self.answer[2] >= self.nth


def find_waits(fleet: Fleet) -> dict[int, Open | None]:
    """The oldest operation that each rank waits in, or None. A stale rank's wait is over by now, or not known."""
    starts = _Starts(fleet)
    unsure: dict[int, list[Open]] = {}
    waits: dict[int, Open | None] = {}
    for rank, member in fleet.members.items():
        found = [] if member.stale else [one for ring in member.rings for one in _open(fleet, member, ring, starts)]
        found.sort(key=lambda one: one.began)
        certain = next((one for one in found if not one.unsure), None)
        waits[rank] = certain
        doubtful = [one for one in found if one.unsure and (certain is None or one.began <= certain.began)]
        if doubtful:
            unsure[rank] = doubtful
    # An answered send of which nobody saw the end is done, unless the answer stands behind something that the other
    # side still waits in. Each round moves waits to older operations only, so this ends.
    changed = True
    while changed:
        changed = False
        for rank, doubtful in unsure.items():
            now = waits[rank]
            for one in doubtful:
                if now is not None and one.began >= now.began:
                    break
                other = waits.get(one.peer) if one.peer is not None else None
                if other is not None and _behind(fleet, one, other):
                    waits[rank], changed = one, True
                    break
    return waits


def has_come(fleet: Fleet, one: Open, other: Open | None) -> bool:
    """Whether the other side of a send or receive stands at the call that answers it; `other` is what it waits in."""
    return one.answered and (other is None or not _behind(fleet, one, other))


def _behind(fleet: Fleet, one: Open, other: Open) -> bool:
    """True when the answer to `one` is kept back by `other`, which the answering rank waits in: an older operation, or
    the one of its batch that nobody answers."""
    if one.answer is None:
        return False
    ring, place, _ = one.answer
    if other.ring is not ring:
        return other.began < ring.created[place]
    if other.place == place:
        return False
    first, last = _batch(fleet, ring, place)
    return not other.answered if first <= other.place <= last else other.place < place


def _open(fleet: Fleet, member: Member, ring: Ring, starts: _Starts) -> list[Open]:
    """A ring's open operations up to the first certain one."""
    last_done = _last_done(fleet, member, ring)
    unreliable = starts.unreliable(fleet, member, ring)
    found: list[Open] = []
    for place in ring.open:
        key = member.key(ring, ring.group[place])
        if key is None:
            continue
        if not ring.flags[place] & P2P:
            if not _over(fleet, member.lanes[key], key, ring.seq[place]):
                return [*found, Open(ring, place, key)]
            continue
        if place < last_done:
            continue
        one = _pair(fleet, member, ring, place, key, unreliable, starts)
        if one is None:
            continue
        if not one.unsure:
            rest = range(place + 1, _batch(fleet, ring, place)[1] + 1)
            batch = (_pair(fleet, member, ring, at, key, unreliable, starts) for at in rest)
            # The calls of a batch finish together: what keeps it back is the one that nobody answers.
            lonely = next((other for other in batch if other is not None and not other.answered), None)
            return [*found, lonely if one.answered and lonely is not None else one]
        found.append(one)
    return found or _timed_out(fleet, member, ring)


def _batch(fleet: Fleet, ring: Ring, place: int) -> tuple[int, int]:
    """The places of the first and the last call of the batch that this one belongs to; itself if it was called
    alone. A batch is closed by a `coalesced` entry."""
    last = place
    while True:
        after = last + 1
        if after >= len(ring) or ring.group[after] != ring.group[place] or not ring.flags[after] & P2P:
            return place, place
        if not fleet.shared.calls[ring.calls[after]].is_p2p:
            break
        last = after
    first = place
    while (
        first > 0
        and ring.group[first - 1] == ring.group[place]
        and ring.flags[first - 1] & P2P
        and (fleet.shared.calls[ring.calls[first - 1]].is_p2p)
    ):
        first -= 1
    return first, last


def _last_done(fleet: Fleet, member: Member, ring: Ring) -> int:
    """The place of the newest collective that is done, or -1; asked only where sends or receives are open."""
    if not any(ring.flags[place] & P2P for place in ring.open):
        return -1
    places = range(len(ring) - 1, -1, -1)
    return next((at for at in places if not ring.flags[at] & P2P and _finished(fleet, member, ring, at)), -1)


def _over(fleet: Fleet, lane: Lane, key: str, seq: int) -> bool:
    """A later one is done, here or elsewhere: then this one is, and nobody has noticed yet."""
    return seq <= max(lane.done if lane.done is not None else -1, fleet.reached.get(key, -1))


def _finished(fleet: Fleet, member: Member, ring: Ring, place: int) -> bool:
    if is_done(ring, place):
        return True
    key = member.key(ring, ring.group[place])
    return key is not None and _over(fleet, member.lanes[key], key, ring.seq[place])


def _timed_out(fleet: Fleet, member: Member, ring: Ring) -> list[Open]:
    """gloo: an operation that ran into its time limit counts as retired; its lane was set back to before it."""
    for key, lane in member.lanes.items():
        if lane.ring is not ring or not len(ring) or lane.done is None or lane.enqueued is None:
            continue
        last = len(ring) - 1
        if ring.group[last] != lane.number or ring.flags[last] & P2P:
            continue
        if ring.seq[last] > max(lane.done, fleet.reached.get(key, -1)):
            return [Open(ring, last, key)]
    return []


# --- sends and receives ----------------------------------------------------------------------------------------------


def _pair(
    fleet: Fleet, member: Member, ring: Ring, place: int, key: str, unreliable: bool, starts: _Starts
) -> Open | None:
    """An open send or receive; None for one that must be done, and for the end of a batch."""
    call = fleet.shared.calls[ring.calls[place]]
    peer = global_rank(fleet, key, call.peer) if call.is_p2p else None
    if peer is None or peer == member.rank:
        return None
    nth, answer = _answer(fleet, member, ring, place, key, peer, starts)
    one = Open(ring, place, key, peer, nth, answer)
    if unreliable and nth is None:
        return None  # neither its state nor the other side tells
    return replace(one, unsure=True) if unreliable and one.answered else one


def _answer(
    fleet: Fleet, member: Member, ring: Ring, place: int, key: str, peer: int, starts: _Starts
) -> tuple[int | None, tuple[Ring, int, int] | None]:
    """Which of its kind this call is, counted from a moment that both sides know; and the other side's call that
    meets it, or its last one before."""
    other = fleet.members.get(peer)
    lane, theirs = member.lanes.get(key), other.lanes.get(key) if other is not None else None
    if other is None or lane is None or other.stale:
        return None, None
    if theirs is None:
        # The other side has no operation in this group at all, and its ring would still show it.
        return (1, None) if all(one.whole for one in other.rings) else (None, None)
    calls = fleet.shared.calls
    call = calls[ring.calls[place]]
    mine = ring.pairs(calls)[(ring.group[place], call.op, call.source, call.target)]
    wanted = "recv" if call.op == "send" else "send"
    yours = theirs.ring.pairs(calls).get((theirs.number, wanted, call.source, call.target), [])
    if not starts.unreliable(fleet, member, ring) and not starts.unreliable(fleet, other, theirs.ring):
        # What is done is done on both sides: the open ones meet in their order.
        return _by_order(ring, mine, place, theirs.ring, yours)
    start = starts.of(member, other, ring, theirs.ring)
    if start is None or place < start[0]:
        return None, None
    nth = bisect_left(mine, place) - bisect_left(mine, start[0]) + 1
    first = bisect_left(yours, start[1])
    made = len(yours) - first
    if made <= 0:
        return nth, None
    number = min(nth, made)
    return nth, (theirs.ring, yours[first + number - 1], number)


def _by_order(
    ring: Ring, mine: list[int], place: int, theirs: Ring, yours: list[int]
) -> tuple[int, tuple[Ring, int, int] | None]:
    """The first open call of one side meets the first open one of the other, and so on."""
    still, others = set(ring.open), set(theirs.open)
    nth = sum(1 for at in mine if at in still and at <= place)
    waiting = [at for at in yours if at in others]
    number = min(nth, len(waiting))
    return nth, (theirs, waiting[number - 1], number) if number else None


class _Starts:
    """Places in two ranks' rings that are one moment of the program, and whose states can be believed."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: dict[tuple[int, int], tuple[int, int] | None] = {}
        self._unreliable: dict[int, bool] = {}

    def unreliable(self, fleet: Fleet, member: Member, ring: Ring) -> bool:
        """Sends and receives may never leave `scheduled`: so it is where some stand before a call that is done."""
        known = self._unreliable.get(id(ring))
        if known is None:
            first = next((place for place in ring.open if ring.flags[place] & P2P), None)
            known = first is not None and first < _last_done(fleet, member, ring)
            self._unreliable[id(ring)] = known
        return known

    def of(self, one: Member, other: Member, ring: Ring, theirs: Ring) -> tuple[int, int] | None:
        """The beginning of both, or the first collective that stands in both; None: there is none."""
        key = (id(ring), id(theirs))
        if key not in self._known:
            self._known[key] = _common_start(one, other, ring, theirs)
        return self._known[key]


def _common_start(one: Member, other: Member, ring: Ring, theirs: Ring) -> tuple[int, int] | None:
    if ring.whole and theirs.whole:
        return 0, 0
    best: tuple[int, int] | None = None
    for key, lane in one.lanes.items():
        their_lane = other.lanes.get(key)
        if their_lane is None or lane.ring is not ring or their_lane.ring is not theirs:
            continue
        mine = ring.places(lane.number)
        yours = theirs.places(their_lane.number)
        if not mine or not yours:
            continue
        first = max(ring.seq[mine[0]], theirs.seq[yours[0]])
        at = next((place for place in mine if ring.seq[place] >= first), None)
        there = next((place for place in yours if theirs.seq[place] >= first), None)
        if at is None or there is None or ring.seq[at] != theirs.seq[there]:
            continue
        if best is None or at < best[0]:
            best = (at, there)
    return best
