"""Who holds the job up when no rank failed by itself: the wait-for graph's roots, circles and contradictions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from rankcall.diagnose import blame, mismatch, p2p, parting, roots, words
from rankcall.diagnose.case import Case
from rankcall.diagnose.drafts import TIE, Draft
from rankcall.diagnose.echoes import is_timeout
from rankcall.diagnose.graph import Graph
from rankcall.diagnose.kinds import algorithm
from rankcall.diagnose.mismatch import Difference
from rankcall.diagnose.parting import Parting
from rankcall.diagnose.roll import Roll
from rankcall.diagnose.swallowed import swallowed
from rankcall.findings import Evidence, Rival
from rankcall.snapshot import Frame, Wait


def judge(roll: Roll, graph: Graph) -> Draft | None:
    """The verdict on a job in which some ranks wait (or waited, before echoes ended them)."""
    if not graph.blockers:
        return _nobody_waits(roll)
    gone = [rank for rank in graph.roots if rank in roll.standings and roll.standings[rank].ending == "left"]
    live = [rank for rank in graph.roots if rank in roll.standings and roll.standings[rank].present]
    pairs = p2p.judge(roll, graph)
    if pairs is not None and not live and not any(_called_exit(roll, rank) for rank in gone):
        return pairs
    if gone:
        return _gone(roll, graph, gone)
    contradiction = _contradicts(roll, graph)
    if not live or contradiction:
        draft = _symmetric(roll, graph)
        if draft is not None:
            # Ranks that wait at one key in one operation may only be slow: then nothing is proven.
            return dataclasses.replace(draft, proven=draft.proven and (contradiction or roll.over))
    if live:
        draft = roots.judge(roll, live, graph.waiting_for(tuple(live)))
        return _ran_out_of_time(roll, draft) or draft
    return pairs


_LIMIT = re.compile(r"(\d{2,9}) ?(ms|milliseconds)")


def _ran_out_of_time(roll: Roll, draft: Draft) -> Draft | None:
    """The others gave up on a rank that was still at work: then the limit is the trouble, not the rank."""
    texts = [s.exception.message for s in roll.standings.values() if s.ending == "echo" and s.exception is not None]
    if draft.pitfall != "straggler" or not any(is_timeout(text) for text in texts):
        return None
    found = next((match for text in texts if (match := _LIMIT.search(text))), None)
    limit = f" of {words.duration(int(found.group(1)) / 1000)}" if found is not None else ""
    return dataclasses.replace(
        draft,
        pitfall="timeout-too-short",
        confidence=0.65,
        sentence=f"{draft.sentence}; the time limit{limit} ran out while it was at work",
        rivals=(Rival("straggler", 0.3, "Is this rank slow in every step, or was this one phase long?"), *draft.rivals),
    )


def _called_exit(roll: Roll, rank: int) -> bool:
    note = roll.standings[rank].process.exit_note
    return note is not None and note.kind == "exit"


def _nobody_waits(roll: Roll) -> Draft | None:
    """No rank waits for another: those that stand still by themselves are all that can be named."""
    if not roll.snapshot.stalled:
        return None
    still = [
        rank
        for rank, s in roll.standings.items()
        if s.present and s.process.recorded and not roots.moves(roll, rank) and not roots.works(s)
    ]
    return roots.judge(roll, still, ()) if still else None


# --- ranks that have ended by themselves -------------------------------------------------------------------------


def _gone(roll: Roll, graph: Graph, gone: Sequence[int]) -> Draft:
    waiting = graph.waiting_for(tuple(gone))
    for group in _groups(roll, waiting):
        found = parting.find(roll, group)
        if found is None:
            continue
        if draft := _earlier_difference(roll, found, waiting):
            return draft
        draft = blame.judge(Case(roll, graph, found))
        if draft is not None:
            return draft
    return _left(roll, graph, tuple(gone), waiting)


def _left(roll: Roll, graph: Graph, gone: tuple[int, ...], waiting: tuple[int, ...]) -> Draft:
    """Nothing but the fact: a rank ended with exit code 0 and others wait for it."""
    first = roll.standings[gone[0]]
    note = first.process.exit_note
    site = note.site if note is not None and note.site is not None else None
    if site is None:
        site = _way_out(roll, gone[0], waiting)
    place = site or next((e.site for e in reversed(first.process.ring) if e.site is not None), None)
    who = roll.place_name(gone[0]) if len(gone) == 1 else words.ranks_text(gone)
    wait = roll.standings[waiting[0]].wait if waiting else None
    still = f" while {words.ranks_text(waiting)} still {words.verb(waiting, 'needs', 'need')} it" if waiting else ""
    inside = f" in {words.operation(wait)}{words.at(wait.site)}" if wait is not None else ""
    return Draft(
        pitfall="rank-left-early",
        culprits=gone,
        confidence=0.85 if site is not None else 0.7,
        proven=True,
        sentence=f"{who} ended with exit code 0{words.at(site)}{still}{inside}",
        why="It ended as if all were done; its group went on without it.",
        where=place,
        waiting=waiting,
        rivals=(Rival("uneven-steps", 0.3, "Had it fewer batches than the others? Print len(loader) on every rank."),),
        evidence=tuple(
            Evidence("exit note" if roll.standings[r].process.exit_note else "exit", "ended with exit code 0", r,
                     roll.host(r), roll.standings[r].ended_at)
            for r in gone[:8]
        ),
        involved=(*gone, *waiting),
    )  # fmt: skip


def _way_out(roll: Roll, rank: int, waiting: Sequence[int]) -> Frame | None:
    """The one line of the source that leads out before the call that the others are in."""
    wait = roll.standings[waiting[0]].wait if waiting else None
    if wait is not None and wait.site is not None:
        spot = roll.program.spot(wait.site)
        last = next((e.site for e in reversed(roll.standings[rank].process.ring) if e.site is not None), None)
        same = last is not None and last.file == wait.site.file and spot.first < last.line < wait.site.line
        first = last.line if same and last is not None else spot.first
        jumps = roll.program.jumps(wait.site.file, first + 1, wait.site.line - 1)
        out = [jump for jump in jumps if jump.kind in ("return", "exit") and jump.guard is not None]
        if len(out) == 1:
            return Frame(out[0].file, out[0].line)
    exits = roll.program.exits()
    return Frame(exits[0].file, exits[0].line) if len(exits) == 1 else None


def _groups(roll: Roll, ranks: Sequence[int]) -> list[str]:
    """The groups that these ranks wait in, the largest first; the default group stands in for an unknown one."""
    found: dict[str, None] = {}
    for rank in ranks:
        wait = roll.standings[rank].wait
        if wait is not None and wait.group:
            found[wait.group] = None
    if not found and roll.members:
        found[max(roll.members, key=lambda key: len(roll.members[key]))] = None
    return sorted(found, key=lambda key: -len(roll.members.get(key, ())))


# --- all of them wait ----------------------------------------------------------------------------------------------


def signature(wait: Wait) -> tuple[object, ...]:
    """What a rank waits in, and where: equal for all ranks of a job that is only slow."""
    name = algorithm(wait.op) if wait.op else wait.outer
    return (wait.kind, wait.group, wait.seq, name, wait.site)


def _contradicts(roll: Roll, graph: Graph) -> bool:
    """True when waits exclude one another: a circle, or different operations at one key."""
    if any(not any(roll.standings[rank].likely for rank in cycle) for cycle in graph.cycles):
        return True
    return any(difference.aspect == "operation" for difference in _at_waits(roll, graph))


def _at_waits(roll: Roll, graph: Graph) -> list[Difference]:
    keys = {
        (wait.group, wait.seq)
        for rank in graph.waiting
        if (wait := roll.standings[rank].wait) is not None and wait.seq is not None
    }
    return [d for d in mismatch.differences(roll) if (d.group, d.seq) in keys]


def _symmetric(roll: Roll, graph: Graph) -> Draft | None:
    involved = tuple(sorted({r for cycle in graph.cycles for r in cycle} | set(graph.unexplained)))
    if not involved:
        return None
    waits = [w for rank in graph.waiting if (w := roll.standings[rank].wait) is not None]
    agree = len({signature(wait) for wait in waits}) < 2
    differences = [d for d in mismatch.differences(roll) if mismatch.breaks(d)]
    for group in _groups(roll, graph.waiting):
        found = parting.find(roll, group)
        if found is None:
            continue
        if draft := _earlier_difference(roll, found, involved):
            return draft
        if agree and not roll.over:
            continue
        draft = blame.judge(Case(roll, graph, found))
        if draft is not None:
            return draft
    if (draft := _new_group(roll, graph) or swallowed(roll, graph)) is not None:
        return draft
    if graph.cycles and (draft := inversion(roll, graph, max(graph.cycles, key=len))) is not None:
        return draft
    if not differences:
        return None
    by_site = parting.find_by_site(roll, differences[0].group)
    if by_site is not None and _earlier_difference(roll, by_site, involved) is None:
        draft = blame.judge(Case(roll, graph, by_site))
        if draft is not None:
            return draft
    return mismatch.judge(roll, differences[0], graph.waiting)


def _earlier_difference(roll: Roll, found: Parting, waiting: Sequence[int]) -> Draft | None:
    """A size or root that differed before the programs parted: then that is the cause, and the parting its effect."""
    for difference in mismatch.differences(roll):
        if not mismatch.breaks(difference) or difference.aspect == "operation":
            continue
        if any(_before(found, rank, call.time) for rank, call in difference.calls.items() if call.recorded):
            return mismatch.judge(roll, difference, waiting)
        return None
    return None


def _before(found: Parting, rank: int, time: float) -> bool:
    lane = found.lanes.get(rank)
    if lane is None:
        return False
    event = lane.event(found.first_index)
    return event is None or time < event.time


def _new_group(roll: Roll, graph: Graph) -> Draft | None:
    """Some ranks make a group; the others are elsewhere, or make another one."""
    inside = [rank for rank in graph.waiting if (w := roll.standings[rank].wait) is not None and w.kind == "new-group"]
    if not inside:
        return None
    sites: dict[str, list[int]] = {}
    for rank in graph.waiting:
        wait = roll.standings[rank].wait
        assert wait is not None
        sites.setdefault(f"{words.operation(wait)}{words.at(wait.site)}", []).append(rank)
    if len(sites) < 2:
        return None
    parts = sorted(sites.items(), key=lambda part: len(part[1]))
    tie = len(parts[0][1]) == len(parts[-1][1])
    culprits = tuple(sorted(rank for _, ranks in parts for rank in ranks)) if tie else tuple(parts[0][1])
    said = [f"{words.ranks_text(ranks)} {words.verb(ranks, 'is', 'are')} in {name}" for name, ranks in parts[:4]]
    wait = roll.standings[inside[0]].wait
    return Draft(
        pitfall="group-created-out-of-order",
        culprits=culprits,
        confidence=TIE if tie else 0.85,
        proven=True,
        sentence=f"not all ranks make the same group: {', '.join(said)}",
        why="new_group is a call of all ranks, members or not, in the same order everywhere.",
        where=wait.site if wait is not None else None,
        waiting=tuple(rank for rank in graph.waiting if rank not in culprits),
        rivals=(Rival("lone-collective", 0.3, "Does new_group stand under a condition on the rank?"),),
        evidence=tuple(Evidence("record", text, ranks[0], roll.host(ranks[0])) for text, ranks in parts[:8]),
        involved=graph.waiting,
    )


def inversion(roll: Roll, graph: Graph, circle: tuple[int, ...]) -> Draft | None:
    """A circle of waits over several groups: they were entered in different orders."""
    groups: dict[str, list[int]] = {}
    for rank in circle:
        wait = roll.standings[rank].wait
        if wait is not None and wait.group:
            groups.setdefault(wait.group, []).append(rank)
    if len(groups) < 2:
        return None
    parts = []
    for key, ranks in list(groups.items())[:4]:
        wait = roll.standings[ranks[0]].wait
        assert wait is not None
        parts.append(f"{words.ranks_text(ranks)} {words.verb(ranks, 'waits', 'wait')} in {words.operation(wait)} of "
                     f"{group_name(roll, key)}{words.at(wait.site)}")  # fmt: skip
    first = roll.standings[circle[0]].wait
    return Draft(
        pitfall="group-order-inversion",
        culprits=circle,
        confidence=0.9,
        proven=True,
        sentence=f"{words.ranks_text(circle)} wait for one another in a circle: {', '.join(parts)}",
        why="The groups were entered in different orders: each rank holds the place that another one waits for.",
        where=first.site if first is not None else None,
        waiting=tuple(rank for rank in graph.waiting if rank not in circle),
        rivals=(Rival("data-dependent-skip", 0.1, "Do all ranks make the same calls in each step?"),),
        evidence=tuple(
            Evidence("record", f"in {words.operation(w)}{words.at(w.site)}, waits for "
                     f"{words.ranks_text(graph.blockers[rank])}", rank, roll.host(rank), w.since)
            for rank in circle[:16]
            if (w := roll.standings[rank].wait) is not None and graph.blockers[rank]
        ),
        involved=circle,
    )  # fmt: skip


def group_name(roll: Roll, key: str) -> str:
    """The group as a person would say it: `the default group`, `group mesh_data (0, 2)`, `the group of ranks 0, 1`."""
    found = roll.groups.get(key)
    members = roll.members.get(key, ())
    if found is None or not members:
        return f"group {key}"
    if found.description == "default_pg":
        return "the default group"
    if found.description and found.description != "undefined":
        return f"group {found.description} ({words.span_text(members)})"
    if any(other != key and roll.members.get(other) == members for other in roll.groups):
        return f"group number {found.incarnation + 1} of ranks {words.span_text(members)}"
    return f"the group of ranks {words.span_text(members)}"
