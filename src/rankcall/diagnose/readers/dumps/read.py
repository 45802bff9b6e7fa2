"""Files that a job left -> the snapshot of its ranks, from their flight-recorder dumps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from rankcall.diagnose import dumped
from rankcall.diagnose import graph as wait_for
from rankcall.diagnose.readers.dumps import habits, shifts
from rankcall.diagnose.readers.dumps.files import Named, place
from rankcall.diagnose.readers.dumps.members import Fleet, Member, gather
from rankcall.diagnose.readers.dumps.pool import Unreadable, read_all
from rankcall.diagnose.readers.dumps.rings import Ring
from rankcall.diagnose.readers.dumps.shared import Shared
from rankcall.diagnose.readers.dumps.to_snapshot import snapshot_of
from rankcall.diagnose.roll import Roll, call_roll
from rankcall.diagnose.waits import with_waits
from rankcall.snapshot import Shift, Snapshot

_MOST_SUSPECTED = 64  # ranks of one group compared when a root is known
_FEW_SIBLINGS = 4  # enough beside the group itself, when it is only asked where a known root left the others
_SMALL_CIRCLE = 8  # ranks; in a larger one others do the same work


@dataclass(frozen=True, slots=True)
class DumpsRead:
    """`snapshot` is None when no file could be read."""

    snapshot: Snapshot | None
    unreadable: tuple[Unreadable, ...]


def read_dumps(
    files: Sequence[Named],
    *,
    world_size: int | None = None,
    whole_rings: bool = False,
    progress: Callable[[int], None] | None = None,
) -> DumpsRead:
    """Read these dumps, each in a worker under limits, and lay the ranks side by side."""
    shared = Shared()
    by_path = {file.source.path: file for file in files}
    read: list[tuple[Named, Ring]] = []
    unreadable: list[Unreadable] = []
    for answer in read_all([file.source for file in files], shared, ends=whole_rings, progress=progress):
        if isinstance(answer, Unreadable):
            unreadable.append(answer)
        else:
            read.append((by_path[answer.path], answer))
    unreadable.sort(key=lambda one: str(one.path))
    if not read:
        return DumpsRead(None, tuple(unreadable))
    read.sort(key=lambda pair: str(pair[0].source.path))
    placed, notes = place(read, shared.members)
    left_out = sum(ring.left_out for _, ring in read)
    if left_out:
        notes.append(f"{left_out} entries were not as torch writes them, and left out.")
    fleet = gather(placed, shared, world_size)
    snapshot = snapshot_of(fleet, notes=notes, whole_rings=whole_rings)
    return DumpsRead(_with_shifts(fleet, snapshot), tuple(unreadable))


def _with_shifts(fleet: Fleet, snapshot: Snapshot) -> Snapshot:
    """Look for calls that were skipped long ago, where ranks wait and it may explain why."""
    roll = with_waits(call_roll(snapshot))
    graph = wait_for.build(roll)
    roots = {rank for rank in graph.roots if rank in fleet.members and not fleet.members[rank].stale}
    waited: dict[str, None] = {}
    for rank in graph.waiting:
        wait = roll.standings[rank].wait
        if wait is None or wait.kind != "collective" or wait.group not in fleet.groups:
            continue
        small = fleet.groups[wait.group].size <= _MOST_SUSPECTED
        if not roots or (graph.blockers[rank] & roots and small):
            waited[wait.group] = None
    found = shifts.find(fleet, list(waited), _FEW_SIBLINGS if roots else shifts.MOST_SIBLINGS)
    if all(shift.kind in ("differs", "swapped") for shift in found):
        found += habits.broken(fleet, _in_pairs(fleet, roll, graph))
    if not found and waited:
        found = _against_themselves(fleet, roll, graph)
    return msgspec.structs.replace(snapshot, shifts=tuple(found)) if found else snapshot


def _against_themselves(fleet: Fleet, roll: Roll, graph: wait_for.Graph) -> list[Shift]:
    """Two ranks that contradict each other, and nobody else does the same work: their own steps before tell."""
    for difference in dumped.at_waits(roll, graph):
        if difference.tie and difference.group in fleet.groups:
            return shifts.against_itself(fleet, difference.calls, difference.group)
    for cycle in graph.cycles:
        groups = dict.fromkeys(wait.group for rank in cycle if (wait := roll.standings[rank].wait) is not None)
        if len(cycle) <= _SMALL_CIRCLE and all(group in fleet.groups for group in groups):
            smallest = min(groups, key=lambda group: fleet.groups[group].size)
            odd = shifts.against_itself(fleet, cycle, smallest)
            if odd and len(odd) < len(cycle):
                return odd
    return []


def _in_pairs(fleet: Fleet, roll: Roll, graph: wait_for.Graph) -> list[int]:
    """The ranks of circles, and of waits without a root, that go through a send or receive."""
    ends = [rank for rank in graph.unexplained if not _blind(fleet.members[rank])]
    pairs = {rank for rank in graph.waiting if (wait := roll.standings[rank].wait) is not None and wait.kind == "p2p"}
    circles = [cycle for cycle in graph.cycles if not pairs.isdisjoint(cycle)]
    if circles:
        return sorted({rank for cycle in circles for rank in cycle})
    in_circles = [rank for cycle in graph.cycles for rank in cycle]
    held = wait_for.Waiters(graph.blockers).of((*graph.roots, *ends, *in_circles))
    found: set[int] = set()
    for rank in graph.waiting:
        wait = roll.standings[rank].wait
        if rank in held or wait is None or wait.kind != "p2p" or wait.peer is None:
            continue
        found |= {rank, wait.peer}
    return sorted(found)


def _blind(member: Member) -> bool:
    """True when even the oldest operation that its ring still holds is not done: what it really waits in is older."""
    return any(len(ring.open) > 0 and ring.open[0] == 0 and not ring.whole for ring in member.rings)
