"""What each rank waits in: the oldest of its operations that is not done.

Operations are put on a device's queue and finish in their order, whatever the host does meanwhile. In a program whose
ranks agree on the order, the oldest operation that is not done anywhere has been begun by nobody who waits in another
one; so the rank that keeps it back waits nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankcall.diagnose.readers.dumps.members import Fleet, Lane, Member, global_rank, is_done
from rankcall.diagnose.readers.dumps.reduce import P2P
from rankcall.diagnose.readers.dumps.rings import Ring


@dataclass(frozen=True, slots=True)
class Open:
    """An operation that is not done: where it stands. For point-to-point: the other side's global rank, and how many
    of its kind this rank has made since a place that both sides know (None: there is no such place)."""

    ring: Ring
    place: int
    key: str
    peer: int | None = None
    nth: int | None = None
    answers: int | None = None  # how many the other side has made that could answer


def wait_of(fleet: Fleet, member: Member) -> Open | None:
    """The oldest operation that this rank waits in, or None. A stale rank's wait is over by now, or not known."""
    if member.stale:
        return None
    found = [one for ring in member.rings for one in _open(fleet, member, ring)]
    return min(found, key=lambda one: (one.ring.created[one.place], one.place), default=None)


def _open(fleet: Fleet, member: Member, ring: Ring) -> list[Open]:
    """The first open collective of a ring and the first open send or receive, those left out that must be done."""
    found: list[Open] = []
    pairs: list[tuple[int, str]] = []
    for place in ring.open:
        key = member.key(ring, ring.group[place])
        if key is None:
            continue
        if ring.flags[place] & P2P:
            pairs.append((place, key))
        elif not found and not _over(fleet, member.lanes[key], key, ring.seq[place]):
            found.append(Open(ring, place, key))
    if pairs:
        found += _first_pair(fleet, member, ring, pairs)
    if not found and not pairs:
        found += _by_status(fleet, member, ring)
    return found


def _over(fleet: Fleet, lane: Lane, key: str, seq: int) -> bool:
    """A later one is done, here or elsewhere: then this one is, and nobody has noticed yet."""
    return seq <= max(lane.done if lane.done is not None else -1, fleet.reached.get(key, -1))


def _by_status(fleet: Fleet, member: Member, ring: Ring) -> list[Open]:
    """gloo: an operation that timed out counts as retired; its lane was set back to before it."""
    for key, lane in member.lanes.items():
        if lane.ring is not ring or not len(ring) or lane.done is None or lane.enqueued is None:
            continue
        last = len(ring) - 1
        if (
            ring.group[last] == lane.number
            and ring.seq[last] > max(lane.done, fleet.reached.get(key, -1))
            and not (ring.flags[last] & P2P)
        ):
            return [Open(ring, last, key)]
    return []


# --- sends and receives ----------------------------------------------------------------------------------------------


def _first_pair(fleet: Fleet, member: Member, ring: Ring, pairs: list[tuple[int, str]]) -> list[Open]:
    """Batched sends and receives may never leave `scheduled`: where some stand before an operation that is done,
    only those after the last such one count, and only if the other side has made no call that answers."""
    places = range(len(ring) - 1, -1, -1)
    last_done = next((at for at in places if not ring.flags[at] & P2P and _finished(fleet, member, ring, at)), -1)
    unreliable = pairs[0][0] < last_done
    for place, key in pairs:
        if place < last_done:
            continue
        call = fleet.shared.calls[ring.calls[place]]
        if not call.is_p2p:
            continue  # the end of a batch
        peer = global_rank(fleet, key, call.peer)
        if peer is None or peer == member.rank:
            continue
        nth, answers = _counts(fleet, member, key, place, peer)
        answered = nth is not None and answers is not None and answers >= nth
        if unreliable and (answered or nth is None):
            continue
        if answered and _later_done(ring, place):
            continue
        return [Open(ring, place, key, peer, nth, answers)]
    return []


def _finished(fleet: Fleet, member: Member, ring: Ring, place: int) -> bool:
    if is_done(ring, place):
        return True
    key = member.key(ring, ring.group[place])
    return key is not None and _over(fleet, member.lanes[key], key, ring.seq[place])


def _later_done(ring: Ring, place: int) -> bool:
    """A later send or receive of the same group is done."""
    return any(
        ring.flags[later] & P2P and ring.group[later] == ring.group[place] and is_done(ring, later)
        for later in range(place + 1, len(ring))
    )


def _counts(fleet: Fleet, member: Member, key: str, place: int, peer: int) -> tuple[int | None, int | None]:
    """Which of its kind this call is, and how many calls the other side has made that answer, both counted from a
    place that both know: the beginning, or a collective that stands in both rings."""
    other = fleet.members.get(peer)
    lane, theirs = member.lanes.get(key), other.lanes.get(key) if other is not None else None
    if other is None or lane is None or other.stale:
        return None, None
    if theirs is None:
        return (1, 0) if all(ring.whole for ring in other.rings) else (None, None)
    starts = _common_start(member, other, lane.ring, theirs.ring)
    if starts is None:
        return None, None
    call = fleet.shared.calls[lane.ring.calls[place]]
    wanted = (call.source, call.target)
    nth = _count(fleet, lane, starts[0], place, call.op, wanted)
    answers = _count(fleet, theirs, starts[1], len(theirs.ring) - 1, "recv" if call.op == "send" else "send", wanted)
    return nth, answers


def _count(fleet: Fleet, lane: Lane, start: int, end: int, op: str, ends: tuple[int | None, int | None]) -> int:
    ring, calls = lane.ring, fleet.shared.calls
    alike = {number for number in set(ring.calls[start : end + 1])
             if calls[number].op == op and (calls[number].source, calls[number].target) == ends}  # fmt: skip
    if not alike:
        return 0
    return sum(1 for place in range(start, end + 1) if ring.calls[place] in alike and ring.group[place] == lane.number)


def _common_start(one: Member, other: Member, ring: Ring, theirs: Ring) -> tuple[int, int] | None:
    """Places in the two rings that are one moment of the program: the beginning, or one collective of both."""
    if ring.whole and theirs.whole:
        return 0, 0
    best: tuple[int, int] | None = None
    for key, lane in one.lanes.items():
        their_lane = other.lanes.get(key)
        if their_lane is None or lane.ring is not ring or their_lane.ring is not theirs:
            continue
        mine = ring.places.get(lane.number, [])
        yours = theirs.places.get(their_lane.number, [])
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
