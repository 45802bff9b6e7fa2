"""Where the ranks' event rings part: the first place at which members of one group did different things.

Only what members of a group must do alike is compared: the group's own collectives and a wrapped model's forwards
and backwards. Who is to blame for a parting is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rankcall.diagnose.frames import same_place
from rankcall.diagnose.kinds import algorithm
from rankcall.diagnose.roll import Roll, Standing
from rankcall.diagnose.waits import main_group
from rankcall.snapshot import Event, Frame

_LOCAL = frozenset({"forward", "eval-forward", "backward"})
END = ("end", "")

Token = tuple[str, str]


@dataclass(frozen=True)
class Lane:
    """One rank's events that its group shares, oldest first. `whole`: the ring still holds its beginning.
    `over`: the rank left by itself, so that its end is a deed like any other."""

    rank: int
    events: Sequence[Event]
    whole: bool
    over: bool

    def token(self, index: int) -> Token | None:
        """What the rank did at this place; END after it left; None where it has simply not come yet."""
        if index < len(self.events):
            return token(self.events[index])
        return END if self.over else None

    def event(self, index: int) -> Event | None:
        return self.events[index] if 0 <= index < len(self.events) else None


@dataclass(frozen=True)
class Side:
    """Ranks that did the same thing at the place of parting."""

    token: Token
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Parting:
    """`index` is the place in the lanes. `sides` are ordered by size, largest first. `first_index` is where the
    call sites began to differ without a break up to there: the operations still matched, the programs did not."""

    group: str
    lanes: dict[int, Lane]
    index: int
    sides: tuple[Side, ...]
    first_index: int
    behind: tuple[int, ...] = field(default=())

    def event(self, rank: int, index: int | None = None) -> Event | None:
        return self.lanes[rank].event(self.index if index is None else index)

    def before(self, rank: int) -> Event | None:
        """The rank's last common event."""
        return self.lanes[rank].event(self.index - 1)


def token(event: Event) -> Token:
    """What has to be alike: the kind, and for a collective its algorithm."""
    if event.kind == "collective":
        return ("collective", algorithm(event.op))
    return (event.kind, "")


def lane_of(standing: Standing, group: str, *, local: bool = True) -> Lane:
    """The rank's events of this group, with or without its model's forwards and backwards."""
    ring = standing.process.ring
    main = main_group(standing.process)
    default = main.key if main is not None else ""
    events = [
        event
        for event in ring
        if (event.kind == "collective" and (event.group == group or (not event.group and group == default)))
        or (local and event.kind in _LOCAL and event.group in ("", group))
    ]
    whole = not ring or ring[0].index == 0
    unseen = _unseen_call(standing, group)
    if unseen is not None:
        events.append(unseen)
    return Lane(standing.rank, events, whole, standing.ending == "left")


def _unseen_call(standing: Standing, group: str) -> Event | None:
    """A collective that C++ started outside any forward or backward: only the flight recorder has it."""
    wait = standing.wait
    if wait is None or wait.source != "flight-recorder" or wait.group != group or not wait.op:
        return None
    if standing.thread.phase in ("forward", "backward", "evaluate"):
        return None
    ring = standing.process.ring
    if any(event.kind == "collective" and event.group == group and event.seq == wait.seq for event in ring[-64:]):
        return None
    return Event(
        index=ring[-1].index + 1 if ring else 0,
        time=(wait.since or 0.0) + standing.process.clock_offset,
        kind="collective",
        op=wait.op,
        group=group,
        seq=wait.seq,
        numel=wait.numel,
        dtype=wait.dtype,
        site=wait.site,
        step=ring[-1].step if ring else None,
    )


def find(roll: Roll, group: str, ranks: Sequence[int] | None = None) -> Parting | None:
    """The first place where the members of `group` differ, or None: they agree as far as their rings tell."""
    members = [m for m in (ranks or roll.members.get(group, ())) if m in roll.standings]
    if len(members) < 2:
        return None
    found = _find(roll, group, members, local=True)
    if found is not None and found.index == 0 and not _all_start_alike(found):
        # Pipelines and parameter servers differ from the start; their group's collectives must still agree.
        return _find(roll, group, members, local=False)
    return found


def find_by_site(roll: Roll, group: str) -> Parting | None:
    """Operations that match to the end, but come from different lines at last: the programs parted there."""
    members = [m for m in roll.members.get(group, ()) if m in roll.standings]
    lanes = _aligned([lane_of(roll.standings[m], group) for m in members])
    shortest = min((len(lane.events) for lane in lanes), default=0)
    if len(lanes) < 2 or not shortest:
        return None
    first = _site_run(lanes, shortest)
    if first == shortest:
        return None
    return Parting(group, {lane.rank: lane for lane in lanes}, shortest, (), first)


def _all_start_alike(parting: Parting) -> bool:
    return any(side.token == END for side in parting.sides) and len(parting.sides) == 2


def _find(roll: Roll, group: str, members: Sequence[int], *, local: bool) -> Parting | None:
    lanes = _aligned([lane_of(roll.standings[m], group, local=local) for m in members])
    longest = max((len(lane.events) for lane in lanes), default=0)
    for index in range(longest + 1):
        tokens = {lane.rank: lane.token(index) for lane in lanes}
        kinds = {found for found in tokens.values() if found is not None}
        if len(kinds) > 1:
            sides = _sides(tokens)
            behind = tuple(sorted(rank for rank, found in tokens.items() if found is None))
            by_rank = {lane.rank: lane for lane in lanes}
            return Parting(group, by_rank, index, sides, _site_run(lanes, index), behind)
    return None


def _sides(tokens: dict[int, Token | None]) -> tuple[Side, ...]:
    by_token: dict[Token, list[int]] = {}
    for rank, found in tokens.items():
        if found is not None:
            by_token.setdefault(found, []).append(rank)
    sides = [Side(found, tuple(sorted(ranks))) for found, ranks in by_token.items()]
    return tuple(sorted(sides, key=lambda side: (-len(side.ranks), side.token == END, side.ranks)))


def _aligned(lanes: list[Lane]) -> list[Lane]:
    """Cut the lanes so that index 0 is the same place in all of them."""
    if all(lane.whole for lane in lanes):
        return lanes
    by_number = _cut_at_number(lanes)
    return by_number if by_number is not None else _cut_at_place(lanes)


def _cut_at_number(lanes: list[Lane]) -> list[Lane] | None:
    """Begin at the first collective whose number every ring still holds."""
    firsts = [
        next((e.seq for e in lane.events if e.seq is not None and e.kind == "collective"), None) for lane in lanes
    ]
    known = [number for number in firsts if number is not None]
    if len(known) < len(lanes):
        return None
    start = max(known)
    cut = []
    for lane in lanes:
        at = next((i for i, e in enumerate(lane.events) if e.kind == "collective" and e.seq == start), None)
        if at is None:
            return None
        cut.append(Lane(lane.rank, lane.events[at:], lane.whole, lane.over))
    return cut


def _cut_at_place(lanes: list[Lane]) -> list[Lane]:
    firsts = [lane.events[0].place for lane in lanes if lane.events]
    start = max((place for place in firsts if place is not None), default=0)
    return [
        Lane(lane.rank, [e for e in lane.events if e.place is None or e.place >= start], lane.whole, lane.over)
        for lane in lanes
    ]


def _site_run(lanes: list[Lane], index: int) -> int:
    """Walk back from the parting while the call sites differ: there the programs had parted already."""
    first = index
    habits: set[tuple[Frame | None, ...]] | None = None
    while first > 0:
        sites = _sites(lanes, first - 1)
        if _alike(sites):
            break
        if habits is None:
            habits = _habits(lanes, index)
        if sites in habits:
            break
        first -= 1
    return first


def _sites(lanes: list[Lane], index: int) -> tuple[Frame | None, ...]:
    return tuple(event.site if (event := lane.event(index)) is not None else None for lane in lanes)


def _alike(sites: tuple[Frame | None, ...]) -> bool:
    known = [site for site in sites if site is not None]
    return len(known) < 2 or all(same_place(known[0], site) for site in known[1:])


def _habits(lanes: list[Lane], index: int) -> set[tuple[Frame | None, ...]]:
    """Different lines that belong to one operation, as in the stages of a pipeline: after them the ranks met again,
    and none of them was ever at another one's line."""
    found: set[tuple[Frame | None, ...]] = set()
    pending: set[tuple[Frame | None, ...]] = set()
    for place in range(index):
        sites = _sites(lanes, place)
        if _alike(sites):
            found |= pending
            pending.clear()
        else:
            pending.add(sites)
    visited: dict[int, set[Frame | None]] = {}
    for number, lane in enumerate(lanes):
        visited[number] = {event.site for event in lane.events[:index]}
    return {sites for sites in found if not any(
        site != other and site in visited[number] for number, other in enumerate(sites) for site in sites
    )}  # fmt: skip
