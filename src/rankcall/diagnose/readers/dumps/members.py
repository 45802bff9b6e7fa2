"""Ranks and groups out of rings: who is in which group, and how far each rank has come in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rankcall.diagnose.readers.dumps.files import Placed
from rankcall.diagnose.readers.dumps.reduce import COMPLETED, P2P, RETIRED
from rankcall.diagnose.readers.dumps.rings import GroupSeen, Ring
from rankcall.diagnose.readers.dumps.shared import SYMMETRIC, Runs, Shared
from rankcall.diagnose.words import span_text

DEFAULT = "default_pg"
_UNNAMED = ("", "undefined", DEFAULT)
_FAR_ENOUGH = 500  # entries looked through for one that proves that all members had come
_CLOCKS_S = 1.0  # how far the clocks of two machines may be apart, file systems included


@dataclass(frozen=True)
class GroupInfo:
    """A group over all ranks. `role` is equal for the groups that do the same work on other ranks."""

    key: str
    name: str
    description: str
    backend: str
    runs: Runs
    size: int
    incarnation: int
    role: str


@dataclass(eq=False)
class Lane:
    """One rank's part in one group: the group's number in its ring, and how far it has come there."""

    ring: Ring
    number: int
    enqueued: int | None
    done: int | None


@dataclass(eq=False)
class Member:
    """One rank. `stale`: it was seen at an earlier moment than the others, and may have gone on since."""

    rank: int
    rings: list[Ring]
    stale: bool
    lanes: dict[str, Lane] = field(default_factory=dict)
    keys: dict[tuple[int, int], str] = field(default_factory=dict)  # (ring, group number) -> key

    def key(self, ring: Ring, number: int) -> str | None:
        return self.keys.get((id(ring), number))


@dataclass(eq=False)
class Fleet:
    """All ranks that left a dump, and their groups. `reached[key]` is a number that all members have come to."""

    members: dict[int, Member]
    groups: dict[str, GroupInfo]
    world_size: int
    shared: Shared
    reached: dict[str, int] = field(default_factory=dict)
    guessed: set[str] = field(default_factory=set)  # keys of groups whose members no dump names

    def call_at(self, ring: Ring, place: int) -> str:
        return self.shared.calls[ring.calls[place]].op


def gather(placed: Sequence[Placed], shared: Shared, world_size: int | None) -> Fleet:
    """Lay the rings side by side."""
    by_rank: dict[int, Member] = {}
    for one in placed:
        member = by_rank.setdefault(one.rank, Member(one.rank, [], False))
        member.rings.append(one.ring)
        member.stale |= one.older
    size = _world_size(by_rank, shared, world_size)
    fleet = Fleet(dict(sorted(by_rank.items())), {}, size, shared)
    _name_groups(fleet)
    _undo_time_outs(fleet)
    for key in fleet.groups:
        reached = _reached_by_all(fleet, key)
        if reached is not None:
            fleet.reached[key] = reached
    _find_stale(fleet)
    return fleet


def size_of(runs: Runs) -> int:
    return sum(last - first + 1 for first, last in runs)


def ranks_of(runs: Runs) -> list[int]:
    return [rank for first, last in runs for rank in range(first, last + 1)]


def runs_of(ranks: Iterable[int]) -> Runs:
    """Ranks as runs (first, last)."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return tuple(runs)


# --- groups ----------------------------------------------------------------------------------------------------------


def _world_size(members: dict[int, Member], shared: Shared, given: int | None) -> int:
    if given is not None:
        return max(given, max(members, default=-1) + 1)
    largest = max(members, default=-1) + 1
    largest = max([largest, *(runs[-1][1] + 1 for runs in shared.members if runs)])
    for member in members.values():
        for ring in member.rings:
            largest = max([largest, *(size for number, size in _gathered_sizes(ring, shared).items()
                                      if ring.groups[number].description == DEFAULT)])  # fmt: skip
    return largest


def _gathered_sizes(ring: Ring, shared: Shared) -> dict[int, int]:
    """The sizes of groups by what an all-gather makes of its input; only asked where the dump names no members."""
    if ring.gathered is None:
        ring.gathered = _gather_sizes(ring, shared)
    return ring.gathered


def _gather_sizes(ring: Ring, shared: Shared) -> dict[int, int]:
    if all(group.backend != "gloo" for group in ring.groups):
        return {}
    found: dict[int, int] = {}
    for number, call_number in set(zip(ring.group, ring.calls, strict=True)):
        call = shared.calls[call_number]
        if call.op == "all_gather" and call.numel and call.results % call.numel == 0:
            found[number] = max(found.get(number, 0), call.results // call.numel)
    return {number: size for number, size in found.items() if size <= 1 << 20}


def _name_groups(fleet: Fleet) -> None:
    """Give every group of every ring its key; of the incarnations of one name only the last one counts."""
    seen: list[tuple[Member, Ring, int, GroupSeen, Runs | None]] = []
    made = _times_made(fleet)
    for member in fleet.members.values():
        for ring in member.rings:
            lists = {name: fleet.shared.members[number] for name, _, number in ring.config}
            for number in _latest(ring, made):
                group = ring.groups[number]
                seen.append((member, ring, number, group, lists.get(group.name) or None))
    guessed = _guessed_members(fleet, seen)
    names: dict[Runs, dict[tuple[str, str], None]] = {}
    whole = []
    for member, ring, number, group, runs in seen:
        known = runs if runs is not None else guessed[(group.name, group.description)]
        names.setdefault(known, {})[(group.name, group.backend)] = None
        whole.append((member, ring, number, group, known))
    keys = _keys(names)
    orders = _orders(whole)
    for member, ring, number, group, known in whole:
        key = keys[(known, group.name, group.backend)]
        if key not in fleet.groups:
            incarnation = int(key.rpartition("#")[2].partition("/")[0])
            fleet.groups[key] = GroupInfo(
                key,
                group.name,
                group.description,
                group.backend,
                known,
                size_of(known),
                incarnation,
                _role(group, known, orders.get((id(ring), number), 0)),
            )
        if (group.name, group.description) in guessed and group.description != DEFAULT:
            fleet.guessed.add(key)
        member.keys[(id(ring), number)] = key
        member.lanes[key] = Lane(ring, number, group.last, group.done)


def _times_made(fleet: Fleet) -> dict[tuple[str, str], int]:
    """How often a group of one name was made (destroyed and made again), where every ring that has it is whole; then
    the rings can be counted from their beginnings, and a rank that has not used the last one is known."""
    found: dict[tuple[str, str], int] = {}
    cut: set[tuple[str, str]] = set()
    for member in fleet.members.values():
        for ring in member.rings:
            own = Counter((group.name, group.backend) for group in ring.groups)
            for name, count in own.items():
                found[name] = max(found.get(name, 0), count)
                if not ring.whole:
                    cut.add(name)
    return {name: count for name, count in found.items() if name not in cut}


def _latest(ring: Ring, made: dict[tuple[str, str], int]) -> list[int]:
    """The numbers of the groups that are in force: of several with one name the last, if it is everybody's last."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for number, group in enumerate(ring.groups):
        numbers.setdefault((group.name, group.backend), []).append(number)
    return [found[-1] for name, found in numbers.items() if len(found) == made.get(name, len(found))]


def _orders(whole: Sequence[tuple[Member, Ring, int, GroupSeen, Runs]]) -> dict[tuple[int, int], int]:
    """For groups without a description: which of its groups of this size it is for its rank, in the order of the
    names. Ranks that do the same work make their groups in one order."""
    of_ring: dict[tuple[int, int], list[tuple[bool, int, str, int]]] = {}
    for _, ring, number, group, known in whole:
        if group.description not in _UNNAMED or group.description == DEFAULT:
            continue
        name = group.name
        place = (not name.isdigit(), int(name[:9]) if name.isdigit() else 0, name, number)
        of_ring.setdefault((id(ring), size_of(known)), []).append(place)
    return {
        (ring, number): at for (ring, _), places in of_ring.items() for at, (*_, number) in enumerate(sorted(places))
    }


def _role(group: GroupSeen, runs: Runs, order: int) -> str:
    described = group.description.rstrip("0123456789_ ") if group.description not in _UNNAMED else f"#{order}"
    return f"{group.backend} {DEFAULT if group.description == DEFAULT else described} {size_of(runs)}"


def _guessed_members(
    fleet: Fleet, seen: Sequence[tuple[Member, Ring, int, GroupSeen, Runs | None]]
) -> dict[tuple[str, str], Runs]:
    """gloo's dumps name no members: those who use a group are in it, and all ranks are in the default group."""
    users: dict[tuple[str, str], set[int]] = {}
    sizes: dict[tuple[str, str], int] = {}
    for member, ring, number, group, runs in seen:
        if runs is not None:
            continue
        name = (group.name, group.description)
        users.setdefault(name, set()).add(member.rank)
        sizes[name] = max(sizes.get(name, 0), _gathered_sizes(ring, fleet.shared).get(number, 0))
    silent = [rank for rank in range(fleet.world_size) if rank not in fleet.members] if users else []
    found = {}
    for name, ranks in users.items():
        if name[1] == DEFAULT:
            ranks = set(range(fleet.world_size))
        elif sizes[name] == len(ranks) + len(silent):
            ranks = ranks | set(silent)
        found[name] = runs_of(ranks)
    return found


def _keys(names: dict[Runs, dict[tuple[str, str], None]]) -> dict[tuple[Runs, str, str], str]:
    """`0-3#0`: the members, and which of the groups with these members; `/gloo` for a group's second backend."""
    found: dict[tuple[Runs, str, str], str] = {}
    used: dict[str, int] = {}
    for runs, both in names.items():
        text = span_text(ranks_of(runs))
        by_name: dict[str, list[str]] = {}
        for name, backend in both:
            by_name.setdefault(name, []).append(backend)
        for name in sorted(
            by_name, key=lambda name: (not name.isdigit(), int(name[:9]) if name.isdigit() else 0, name)
        ):
            number = used.get(text, 0)
            used[text] = number + 1
            # The device's backend comes first: it is the one that the training waits in.
            for at, backend in enumerate(sorted(by_name[name], key=lambda backend: backend == "gloo")):
                found[(runs, name, backend)] = f"{text}#{number}" + (f"/{backend}" if at else "")
    return found


def global_rank(fleet: Fleet, key: str, index: int | None) -> int | None:
    """A rank within the group as a global rank."""
    if index is None:
        return None
    for first, last in fleet.groups[key].runs:
        if index <= last - first:
            return first + index
        index -= last - first + 1
    return None


# --- how far they have come ------------------------------------------------------------------------------------------


def last_place(ring: Ring, number: int, seq: int) -> int | None:
    """The place of this operation in the ring, found from its end; of a batch, its last entry."""
    group, numbers, flags = ring.group, ring.seq, ring.flags
    for place in range(len(numbers) - 1, -1, -1):
        if group[place] == number and not flags[place] & P2P:
            if numbers[place] == seq:
                return place
            if numbers[place] < seq:
                return None
    return None


def is_done(ring: Ring, place: int) -> bool:
    """Completed; on gloo, where the state says nothing, retired."""
    flags = ring.flags[place]
    return bool(flags & (COMPLETED | RETIRED if ring.groups[ring.group[place]].backend == "gloo" else COMPLETED))


def _undo_time_outs(fleet: Fleet) -> None:
    """gloo retires an operation that ran into its time limit, too: then it is the one that the rank waited in, if some
    member has not come to it. When the file was written alone says nothing: it may have been copied."""
    lowest: dict[str, int] = {}
    for key, group in fleet.groups.items():
        if group.backend == "gloo":
            known = [fleet.members.get(rank) for rank in ranks_of(group.runs)]
            lowest[key] = min(
                (lane.enqueued or 0) if (lane := member.lanes.get(key)) is not None else 0
                for member in known
                if member is not None
            )
    for member in fleet.members.values():
        for key, lane in member.lanes.items():
            ring = lane.ring
            if fleet.groups[key].backend != "gloo" or not len(ring) or ring.timeout_s is None or lane.done is None:
                continue
            last = len(ring) - 1
            if ring.group[last] != lane.number or ring.seq[last] != lane.done or ring.flags[last] & P2P:
                continue
            if lowest[key] < lane.done and ring.written - ring.created[last] / 1e9 >= ring.timeout_s:
                lane.done -= 1


def _reached_by_all(fleet: Fleet, key: str) -> int | None:
    """The largest number that some member has finished, of an operation that nobody finishes alone: all members had
    come to it, whatever their own dumps say."""
    lanes = [member.lanes[key] for member in _with_lane(fleet, key)]
    lanes = sorted((lane for lane in lanes if lane.done is not None), key=lambda lane: -(lane.done or 0))
    best = None
    for lane in lanes[:4]:
        if best is not None and (lane.done or 0) <= best:
            break
        found = _last_symmetric(fleet, lane)
        if found is not None and (best is None or found > best):
            best = found
    return best


def _with_lane(fleet: Fleet, key: str) -> list[Member]:
    found = (fleet.members.get(rank) for rank in ranks_of(fleet.groups[key].runs))
    return [member for member in found if member is not None and key in member.lanes]


def _last_symmetric(fleet: Fleet, lane: Lane) -> int | None:
    ring, limit = lane.ring, lane.done
    assert limit is not None
    looked = 0
    for place in range(len(ring) - 1, -1, -1):
        if ring.group[place] != lane.number or ring.flags[place] & P2P or ring.seq[place] > limit:
            continue
        if fleet.call_at(ring, place) in SYMMETRIC:
            return ring.seq[place]
        looked += 1
        if looked > _FAR_ENOUGH:
            break
    return None


def _find_stale(fleet: Fleet) -> None:
    rings = [ring for member in fleet.members.values() for ring in member.rings]
    newest = max((ring.newest or 0.0 for ring in rings), default=0.0)
    # A file written before its own last operation was copied, or has another clock: then no file's time counts.
    by_time = all(ring.newest is None or ring.written >= ring.newest - _CLOCKS_S for ring in rings)
    for member in fleet.members.values():
        behind = any(
            lane.enqueued is not None and lane.enqueued < fleet.reached.get(key, -1)
            for key, lane in member.lanes.items()
        )
        before = by_time and all(ring.written < newest - _CLOCKS_S for ring in member.rings)
        member.stale = member.stale or behind or before
