"""The wait-for graph: who waits for whom, which ranks are missing and wait nowhere, and which wait in a circle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from rankcall.diagnose.kinds import algorithm
from rankcall.diagnose.roll import Roll, Standing
from rankcall.snapshot import Wait


@dataclass(frozen=True)
class Graph:
    """`blockers`: for each waiting rank, the ranks it waits for. `roots`: ranks somebody waits for, directly or
    through others, that wait nowhere themselves. `cycles`: circles of waits without such a root behind them.
    `unexplained`: ranks that wait although every member has arrived, by number."""

    blockers: dict[int, frozenset[int]]
    roots: tuple[int, ...]
    cycles: tuple[tuple[int, ...], ...]
    unexplained: tuple[int, ...]

    @property
    def waiting(self) -> tuple[int, ...]:
        return tuple(sorted(self.blockers))

    def behind(self, rank: int) -> frozenset[int]:
        """All ranks that this one waits for, directly or through others."""
        seen: set[int] = set()
        todo = [rank]
        while todo:
            for other in self.blockers.get(todo.pop(), frozenset()):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        return frozenset(seen)

    def waiting_for(self, roots: tuple[int, ...]) -> tuple[int, ...]:
        """The waiting ranks that some of these roots hold up."""
        return tuple(sorted(Waiters(self.blockers).of(roots) - set(roots)))


def numbers_of(standing: Standing) -> dict[str, int]:
    """The largest sequence number of each group that this rank is known to have entered."""
    found: dict[str, int] = {}
    for group in standing.process.groups:
        if group.enqueued is not None:
            found[group.key] = max(found.get(group.key, 0), group.enqueued)
    seen: set[str] = set()
    for event in reversed(standing.process.ring):
        if event.kind == "collective" and event.seq is not None and event.group not in seen:
            seen.add(event.group)
            found[event.group] = max(found.get(event.group, 0), event.seq)
    wait = standing.wait
    if wait is not None and wait.seq is not None and wait.kind != "p2p":
        found[wait.group] = max(found.get(wait.group, 0), wait.seq)
    return found


@lru_cache(maxsize=1)  # asked several times while one snapshot is judged
def build(roll: Roll) -> Graph:
    """Draw the graph of this roll."""
    numbers = {rank: numbers_of(standing) for rank, standing in roll.standings.items()}
    blockers: dict[int, frozenset[int]] = {}
    shared: dict[tuple[str, int], frozenset[int]] = {}
    for rank, standing in roll.standings.items():
        wait = standing.wait
        if wait is None:
            continue
        if wait.kind not in ("collective", "device") or wait.seq is None:
            blockers[rank] = frozenset(_missing(roll, rank, wait, numbers) - {rank})
            continue
        # Thousands of ranks wait at one key: they share one set.
        key = (wait.group, wait.seq)
        if key not in shared:
            shared[key] = frozenset(_missing(roll, rank, wait, numbers))
        blockers[rank] = shared[key]
    unexplained = tuple(sorted(rank for rank, others in blockers.items() if not others))
    awaited = frozenset().union(*_distinct(blockers))
    roots = sorted(awaited - set(blockers))
    held = _held_by(blockers, set(roots) | set(unexplained))
    return Graph(blockers, tuple(roots), _cycles(blockers, held), unexplained)


def _missing(roll: Roll, rank: int, wait: Wait, numbers: dict[int, dict[str, int]]) -> set[int]:
    """The ranks that have not come to the operation this rank waits in."""
    if wait.kind == "p2p":
        if wait.peer is None or wait.peer == rank:
            return set()
        return set() if _peer_has_come(roll, rank, wait) else {wait.peer}
    if wait.kind == "init":
        return {
            other
            for other in range(roll.world_size)
            if other not in roll.standings or roll.standings[other].process.initialized == "no"
        }
    members = roll.members.get(wait.group, ())
    if wait.kind != "new-group" and wait.seq is not None and roll.snapshot.origin == "files":
        return {member for member in members if not _stands_there(roll, member, wait, numbers)}
    if wait.kind == "new-group":
        members = members or tuple(roll.standings)
        return {m for m in members if m in roll.standings and not _in_new_group(roll.standings[m])}
    if wait.seq is None:
        return _not_in_step(roll, rank, wait, members, numbers)
    return {member for member in members if numbers.get(member, {}).get(wait.group, 0) < wait.seq}


def _stands_there(roll: Roll, member: int, wait: Wait, numbers: dict[int, dict[str, int]]) -> bool:
    """True when the member has put this operation on its queue and no older one keeps it back."""
    if numbers.get(member, {}).get(wait.group, 0) < (wait.seq or 0):
        return False
    own = roll.standings[member].wait if member in roll.standings else None
    return own is None or (own.group == wait.group and own.kind == wait.kind and own.seq == wait.seq)


def _in_new_group(standing: Standing) -> bool:
    return standing.wait is not None and standing.wait.kind == "new-group"


def _not_in_step(
    roll: Roll, rank: int, wait: Wait, members: tuple[int, ...], numbers: dict[int, dict[str, int]]
) -> set[int]:
    """For a wait without a number: the members that have started less, stand outside any wait, or wait in a call
    that cannot be this one."""
    mine = numbers.get(rank, {}).get(wait.group, 0)
    found = set()
    for member in members:
        other = roll.standings.get(member)
        failed = other is not None and other.ending == "exception"
        if other is None or (other.wait is None and not failed) or numbers.get(member, {}).get(wait.group, 0) < mine:
            found.add(member)
    return found


def _another_call(mine: Wait, other: Wait) -> bool:
    """True when the other rank is in a call that was recorded by name, and mine is none of that name."""
    if other.group != mine.group or other.source != "record" or not other.op:
        return False
    return algorithm(mine.op) != algorithm(other.op) if mine.op else mine.source == "stack"


def _peer_has_come(roll: Roll, rank: int, wait: Wait) -> bool:
    """True when the peer has made its side of this send or receive."""
    peer = roll.standings.get(wait.peer) if wait.peer is not None else None
    if peer is None:
        return False
    wanted = "recv" if wait.op.lstrip("i").startswith("send") else "send"
    if wait.nth is None:
        return _answers(peer.wait, wanted, rank, wait.tag)
    most = 0
    for event in peer.process.ring:
        if event.kind == wanted and event.peer in (rank, None) and (event.tag or 0) == (wait.tag or 0):
            if roll.snapshot.origin == "files" and event.nth is None:
                continue  # it was not counted
            most = max(most, most + 1 if event.nth is None else event.nth)
    if peer.wait is not None and _answers(peer.wait, wanted, rank, wait.tag):
        most = max(most, peer.wait.nth or 0)
    return most >= wait.nth


def _answers(wait: Wait | None, wanted: str, rank: int, tag: int | None) -> bool:
    return (
        wait is not None
        and wait.kind == "p2p"
        and wait.op.lstrip("i").startswith(wanted)
        and wait.peer in (rank, None)
        and (wait.tag or 0) == (tag or 0)
    )


def _distinct(blockers: dict[int, frozenset[int]]) -> list[frozenset[int]]:
    """Thousands of ranks share one set: each of them once."""
    return list({id(others): others for others in blockers.values()}.values())


class Waiters:
    """Who waits for a rank, without an edge for each pair: thousands of ranks wait for thousands in one group."""

    def __init__(self, blockers: dict[int, frozenset[int]]) -> None:
        self._by_set: dict[int, list[int]] = {}
        for rank, others in blockers.items():
            self._by_set.setdefault(id(others), []).append(rank)
        self._sets: dict[int, list[int]] = {}
        for others in _distinct(blockers):
            for other in others:
                self._sets.setdefault(other, []).append(id(others))

    def of(self, ranks: Iterable[int]) -> set[int]:
        """The ranks that wait for one of these, directly or through others."""
        todo, opened, found = list(ranks), set[int](), set[int]()
        while todo:
            for number in self._sets.get(todo.pop(), ()):
                if number in opened:
                    continue
                opened.add(number)
                new = [rank for rank in self._by_set[number] if rank not in found]
                found.update(new)
                todo += new
        return found


def _held_by(blockers: dict[int, frozenset[int]], ends: set[int]) -> set[int]:
    """The waiting ranks from which a root or an unexplained wait can be reached: no circle of their own."""
    return Waiters(blockers).of(ends)


def _cycles(blockers: dict[int, frozenset[int]], held: set[int]) -> tuple[tuple[int, ...], ...]:
    """The strongly connected sets of more than one rank (Tarjan's algorithm, without recursion).

    A set that many ranks wait for is a node of its own (a negative number), so that there is one edge to each of its
    members and not one from every rank.
    """
    sets = {id(others): -1 - number for number, others in enumerate(_distinct(blockers))}
    edges: dict[int, list[int]] = {}
    for rank, others in blockers.items():
        node = sets[id(others)]
        edges[rank] = [node]
        if node not in edges:
            edges[node] = sorted((other for other in others if other in blockers and other not in held), reverse=True)
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    found: list[tuple[int, ...]] = []
    for start in sorted(blockers):
        if start in index or start in held:
            continue
        work: list[tuple[int, list[int]]] = [(start, list(edges[start]))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, others_left = work[-1]
            if others_left:
                other = others_left.pop()
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, list(edges[other])))
                elif other in on_stack:
                    low[node] = min(low[node], index[other])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == index[node]:
                members: list[int] = []
                while True:
                    member = stack.pop()
                    on_stack.discard(member)
                    members.append(member)
                    if member == node:
                        break
                ranks = sorted(member for member in members if member >= 0)
                if len(ranks) > 1:
                    found.append(tuple(ranks))
    return tuple(found)
