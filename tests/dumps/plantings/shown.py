"""What the dumps of a run show: a planting counts only if its truth can be read from them."""

from __future__ import annotations

from collections.abc import Iterable

from ..simulate import Group, Instruction, Program, Record, Simulation
from ..write import Moment
from .jobs import Job
from .planted import Place


class Shown:
    """What can be seen of a run in the dumps that there are."""

    def __init__(self, job: Job, simulation: Simulation, moments: list[Moment], unseen: Iterable[int] = ()) -> None:
        self.job = job
        self.simulation = simulation
        self.moments = moments
        self.unseen = frozenset(unseen)  # no dump, or one from before

    def ring(self, rank: int) -> list[Record]:
        """What the dump of a rank holds, oldest first."""
        gloo = self.job.backend == "gloo"
        records = [each for each in self.simulation.ranks[rank].records if not (gloo and each.is_p2p)]
        return records[-self.moments[rank].ring :]

    def waits_for(self, rank: int, missing: int) -> bool:
        """The dump of `rank` shows an unfinished operation that `missing` never enqueued."""
        if rank in self.unseen:
            return False
        held = {id(record) for record in self.ring(rank)}
        return any(
            id(record) in held and missing in self.not_enqueued(rank, record)
            for record in self.simulation.unfinished(rank)
        )

    def not_enqueued(self, rank: int, record: Record) -> set[int]:
        lacking = self.simulation.lacking(rank, record)
        if record.is_p2p:
            return lacking
        members = self.simulation.meetings[(record.group.index, record.seq)].members
        return {member for member in lacking if member not in members}

    def missing_is_seen(self, culprit: int) -> bool:
        """Somebody waits for the culprit, and the culprit's own dump shows how far it came in that group."""
        for rank in range(self.job.world):
            if rank != culprit and self.waits_for(rank, culprit):
                break
        else:
            return False
        if culprit in self.unseen:
            return True
        held = {record.group.index for record in self.ring(culprit)}
        used = {record.group.index for record in self.simulation.ranks[culprit].records if not record.is_p2p}
        return used <= held

    def waiting_is_seen(self, rank: int) -> bool:
        """What an unseen rank waits in is also shown by another member that waits there."""
        for record in self.simulation.unfinished(rank):
            if record.launch is None or record.launch.time is None:
                continue
            if record.is_p2p:
                return False
            members = self.simulation.meetings[(record.group.index, record.seq)].members
            if not any(
                other != rank and other not in self.unseen and any(own is seen for seen in self.ring(other))
                for other, (own, _) in members.items()
            ):
                return False
        return True

    def members_are_seen(self) -> bool:
        """gloo does not tell members: every member of a group that still waits has an entry of it in its ring."""
        waiting = {
            record.group.index: record.group
            for rank in range(self.job.world)
            for record in self.simulation.unfinished(rank)
            if not record.is_p2p
        }
        held = {rank: {record.group.index for record in self.ring(rank)} for rank in range(self.job.world)}
        return all(group.index in held[rank] for group in waiting.values() for rank in group.ranks)

    def tells_apart(self, culprit: int, place: int, group: Group) -> bool:
        """Something besides the two members shows which of them parted from its program."""
        if len(group.ranks) > 2:
            return True
        simulation, job = self.simulation, self.job
        course = job.courses[culprit]
        for rank in range(job.world):
            same = job.courses[rank] is course and rank not in group.ranks and rank not in self.unseen
            if same and simulation.ranks[rank].at > place and any(r.instruction >= place for r in self.ring(rank)):
                return True
        op = job.op(culprit, place)
        if op.occasional or op.varies:
            return False
        step = course.step_at(place)
        before = course.begins[step - 1]
        return all(
            bool(ring := self.ring(rank)) and (ring[0].instruction <= before or len(ring) < self.moments[rank].ring)
            for rank in group.ranks
        )

    def line(self, where: Place | None) -> Place | None:
        return where if self.job.form.frames else None


def all_blocked(simulation: Simulation, besides: Iterable[int]) -> bool:
    """Every rank stands still in the middle of its program, but for these."""
    others = set(range(simulation.layout.world)) - set(besides)
    return all(simulation.ranks[rank].state == "waiting" for rank in others)


def circles_of(simulation: Simulation) -> list[frozenset[int]]:
    """The sets of ranks that wait for each other in a circle, and for nobody else."""
    waits = {rank: simulation.waits_for(rank) for rank in range(simulation.layout.world)}
    reach: dict[int, set[int]] = {}
    for rank in waits:
        seen: set[int] = set()
        todo = [rank]
        while todo:
            for other in waits[todo.pop()]:
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        reach[rank] = seen
    found = {
        frozenset(reach[rank])
        for rank in waits
        if rank in reach[rank] and all(reach[other] == reach[rank] for other in reach[rank])
    }
    return sorted(found, key=min)


def spot(job: Job, rank: int, place: int) -> str:
    """Where in a program that is, in words."""
    op = job.op(rank, place)
    what = op.kind if not op.parts else "/".join(part.direction for part in op.parts)
    return f"{what} on its {op.axis} group, step {job.courses[rank].step_at(place)}"


def edited(program: Program, place: int, remove: int, insert: list[Instruction]) -> list[Instruction]:
    return [*program[:place], *insert, *program[place + remove :]]


def places(a: Place | None, b: Place | None) -> frozenset[Place]:
    return frozenset(place for place in (a, b) if place is not None)


def around(job: Job, simulation: Simulation, rank: int, place: int) -> frozenset[Place]:
    """Lines that are not wrong for a rank that left out the operation at `place`: what it called before and after, of
    any kind and of that group; where it stands now."""
    op = job.op(rank, place)
    found: set[Place] = set()
    for wanted in (lambda other: True, lambda other: other.axis == op.axis):
        places = job.issues(rank, wanted, first_step=0)
        at = places.index(place)
        found.update(job.op(rank, near).site.user for near in places[max(0, at - 1) : at + 2])  # type: ignore[arg-type]
    found.update(record.op.site.user for record in simulation.unfinished(rank))  # type: ignore[arg-type]
    return frozenset(line for line in found if line is not None)
