"""Ranks that do the same work: equal sends and receives, and groups of the same roles."""

from __future__ import annotations

from collections.abc import Iterable

from rankcall.diagnose.readers.dumps.members import DEFAULT, Fleet, Member, ranks_of
from rankcall.diagnose.readers.dumps.rings import Ring

_SMALL_GROUP = 256  # ranks: enough replicas to compare with


def behind(fleet: Fleet, ranks: Iterable[int]) -> set[int]:
    """Those of these ranks that have begun fewer operations than a rank at the same stage, or that are alone there:
    nothing shows that they had come to an end."""
    alone: dict[tuple[frozenset[object], frozenset[str]], int] = {}
    most: dict[tuple[frozenset[object], frozenset[str]], int] = {}
    own: dict[int, tuple[tuple[frozenset[object], frozenset[str]], int]] = {}
    asked = set(ranks)
    for rank in _near(fleet, asked):
        member = fleet.members[rank]
        ring = member.rings[0]
        if ring.begun is None or member.stale:
            continue
        kind = (stage(fleet, member, ring), frozenset(fleet.groups[key].role for key in member.lanes))
        most[kind] = max(most.get(kind, 0), ring.begun)
        alone[kind] = alone.get(kind, 0) + 1
        if rank in asked:
            own[rank] = (kind, ring.begun)
    # Without sends and receives, others wait for a rank that is behind: their numbers tell.
    return {rank for rank, (kind, begun) in own.items() if kind[0] and (begun < most[kind] or alone[kind] == 1)}


def _near(fleet: Fleet, ranks: set[int]) -> set[int]:
    """These ranks and all that share a smaller group with one of them, replicas among them."""
    found = set(ranks)
    keys = {key for rank in ranks for key in fleet.members[rank].lanes}
    smallest = min((fleet.groups[key].size for key in keys), default=0)
    for key in keys:
        group = fleet.groups[key]
        if group.size <= max(_SMALL_GROUP, smallest):
            found.update(rank for rank in ranks_of(group.runs) if rank in fleet.members)
    return found


def stage(fleet: Fleet, member: Member, ring: Ring) -> frozenset[object]:
    """Whom it sends to and receives from: as ranks of the pipeline's own group, or by how far away they are."""
    found: set[object] = set()
    for number, op, source, target in ring.pairs(fleet.shared.calls):
        key = member.key(ring, number)
        if key is None or source is None or target is None:
            continue
        group = fleet.groups[key]
        found.add(
            (group.role, op, target - source) if group.description == DEFAULT else (group.role, op, source, target)
        )
    return frozenset(found)
