"""The verdict on a job of which only flight-recorder dumps are left: nobody looked at its processes.

Each independent cause is a draft of its own. A rank that others wait for and that itself waits in nothing is a root,
and so is a rank without a dump, unless it may be held up like the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import msgspec

from rankcall.diagnose import mismatch, p2p, roots, words
from rankcall.diagnose.drafts import TIE, Draft
from rankcall.diagnose.graph import Graph, Waiters
from rankcall.diagnose.hang import group_name, inversion
from rankcall.diagnose.mismatch import Difference
from rankcall.diagnose.roll import Roll
from rankcall.findings import Evidence, Rival
from rankcall.snapshot import Event, Shift, Wait

# Ranks that meet in different calls may have parted long before.
_PARTED = (
    Rival("uneven-steps", 0.25, "Has one side left the training loop, with fewer batches than the other?"),
    Rival("data-dependent-skip", 0.2, "Did one side leave out a call in an earlier step?"),
)
_RACE_S = 0.05  # clocks of two machines agree about as well
MOST_NAMED = 3  # causes that one sentence can tell


def judge(roll: Roll, graph: Graph) -> list[Draft]:
    """All independent causes, the most telling first; empty when nothing is wrong, or nothing can be told."""
    if not graph.blockers:
        return []
    found = _contradictions(roll, graph)
    if roll.snapshot.stalled:
        named = {rank for draft in found for rank in draft.culprits}
        standing = [*_standing_roots(roll, graph), *_idle(roll, graph)]
        found += _absent(roll, graph, [rank for rank in standing if rank not in named])
        found += _without_dump(roll, graph, found)
    return sorted(found, key=lambda draft: (-len(draft.waiting), draft.culprits))


def together(drafts: Sequence[Draft]) -> Draft:
    """Several independent causes as one verdict: all their ranks, and a sentence for each."""
    if len(drafts) == 1:
        return drafts[0]
    first = drafts[0]
    culprits = tuple(sorted({rank for draft in drafts for rank in draft.culprits}))
    told = [draft.sentence for draft in drafts[:MOST_NAMED]]
    rest = f"; and {len(drafts) - MOST_NAMED} more below" if len(drafts) > MOST_NAMED else ""
    return dataclasses.replace(
        first,
        culprits=culprits,
        proven=all(draft.proven for draft in drafts),
        confidence=min(draft.confidence for draft in drafts),
        sentence=f"{len(drafts)} causes that have nothing to do with each other: {'; '.join(told)}{rest}",
        waiting=tuple(sorted({rank for draft in drafts for rank in draft.waiting} - set(culprits))),
        evidence=tuple(one for draft in drafts for one in draft.evidence),
    )


# --- calls that exclude one another ----------------------------------------------------------------------------------


def _contradictions(roll: Roll, graph: Graph) -> list[Draft]:
    """What holds whenever the dumps were taken: moved calls, different calls at one number, circles of waits."""
    found: list[Draft] = []
    shifts = [shift for shift in roll.snapshot.shifts if shift.kind in ("skipped", "extra") or _in_pair(shift)]
    standing = set(_standing_roots(roll, graph))
    explained: set[int] = set()
    differences = at_waits(roll, graph)
    for shift in shifts:
        ranks = set(shift.ranks)
        only_one = shift.kind == "skipped" and sum(other.kind == "skipped" for other in shifts) == 1
        in_circle = any(ranks & set(cycle) and (only_one or not _each_its_own(roll, cycle)) for cycle in graph.cycles)
        in_difference = any(ranks & set(difference.calls) for difference in differences)
        missing = bool(ranks & standing) and roll.snapshot.stalled
        counted = bool(shift.others) and not shift.calls
        if in_circle or in_difference or missing or ((_in_pair(shift) or counted) and roll.snapshot.stalled):
            found.append(_shifted(roll, graph, shift))
            explained |= ranks
    for difference in differences:
        if not explained & set(difference.calls):
            found.append(_different(roll, graph, difference))
            explained |= set(found[-1].culprits)
    pairs = None
    for cycle in graph.cycles:
        if explained & set(cycle) or _held_up(graph, cycle, explained):
            continue
        alone = _left_out(roll, graph, cycle)
        if alone is not None:
            found.append(alone)
            continue
        if any((wait := roll.standings[rank].wait) is not None and wait.kind == "p2p" for rank in cycle):
            if not roll.snapshot.stalled:
                continue  # the rest of a batch may not have been on its queue yet
            pairs = p2p.judge(roll, graph, cycle)
            if pairs is not None:
                found.append(_by_habit(roll, pairs, cycle))
                continue
        draft = inversion(roll, graph, cycle)
        if draft is not None:
            found.append(draft)
    if pairs is None and not found and roll.snapshot.stalled and (lonely := _lonely(roll, graph)) is not None:
        found.append(lonely)
    return found


def _by_habit(roll: Roll, draft: Draft, cycle: Sequence[int]) -> Draft:
    """Of the two sides of a send or receive, the one whose own steps before show another call."""
    odd = {
        rank for shift in roll.snapshot.shifts if shift.kind == "differs" and not shift.calls for rank in shift.ranks
    }
    odd &= set(cycle)
    if not odd or not odd < set(cycle):
        return draft
    who = words.ranks_text(odd)
    return dataclasses.replace(
        draft,
        culprits=tuple(sorted(odd)),
        sentence=f"{draft.sentence}; {who} made another call there in the steps before",
        waiting=tuple(rank for rank in (*draft.waiting, *draft.culprits) if rank not in odd),
    )


def _left_out(roll: Roll, graph: Graph, cycle: Sequence[int]) -> Draft | None:
    """A circle that one rank alone makes: it stands in a later call than the others of its program, and has not made
    the one that they wait for. Whether it left that out or would have made it later, it is the one that differs."""
    for shift in roll.snapshot.shifts:
        if (
            shift.kind != "differs"
            or not shift.others
            or len(shift.ranks) != 1
            or shift.ranks[0] not in cycle
            or len(shift.calls) < 2
        ):
            continue
        rank, missed = shift.ranks[0], shift.calls[1]
        if _of_one_membership(roll, cycle):
            continue  # two groups of the same ranks: all of them make both calls
        if _each_its_own(roll, cycle) and not _in_company(roll, graph, rank, cycle):
            continue
        return _shifted(roll, graph, msgspec.structs.replace(shift, kind="skipped", count=1, calls=(missed,)))
    return None


def _of_one_membership(roll: Roll, cycle: Sequence[int]) -> bool:
    groups = {wait.group for rank in cycle if (wait := _wait_of(roll, rank)) is not None and wait.kind != "p2p"}
    return len(groups) > 1 and len({roll.members.get(group) for group in groups}) == 1


def _each_its_own(roll: Roll, cycle: Sequence[int]) -> bool:
    """Three ranks or more, and each waits in a group of its own: nobody stands apart from the others."""
    groups = {wait.group for rank in cycle if (wait := _wait_of(roll, rank)) is not None and wait.kind != "p2p"}
    return len(groups) == len(cycle) > 2


def _in_company(roll: Roll, graph: Graph, rank: int, cycle: Sequence[int]) -> bool:
    """True when ranks outside the circle wait in the same operation as this one: it is where the program goes on."""
    mine = _wait_of(roll, rank)
    return mine is not None and any(
        (wait := _wait_of(roll, other)) is not None and (wait.group, wait.seq) == (mine.group, mine.seq)
        for other in graph.waiting
        if other not in cycle
    )


def _in_pair(shift: Shift) -> bool:
    """About a send or receive, not about a group's collectives."""
    return any(call.kind in ("send", "recv") for call in shift.calls)


def _held_up(graph: Graph, cycle: Sequence[int], culprits: Iterable[int]) -> bool:
    """True when a rank of the circle waits for one that is named already."""
    return bool(set(cycle) & Waiters(graph.blockers).of(culprits))


def _lonely(roll: Roll, graph: Graph) -> Draft | None:
    """A send or receive whose other side has gone on, in no circle."""
    held = Waiters(graph.blockers).of((*graph.roots, *graph.unexplained))
    free = [rank for rank in graph.waiting if rank not in held and (wait := roll.standings[rank].wait) is not None
            and wait.kind == "p2p"]  # fmt: skip
    return p2p.judge(roll, graph, free) if free else None


def at_waits(roll: Roll, graph: Graph) -> list[Difference]:
    """The differences at operations that somebody waits in."""
    keys = {
        (wait.group, wait.seq)
        for rank in graph.waiting
        if (wait := roll.standings[rank].wait) is not None and wait.seq is not None
    }
    found = [d for d in mismatch.differences(roll) if (d.group, d.seq) in keys]
    loud = [d for d in found if mismatch.breaks(d)]
    # A difference that libraries pass over in silence is still all there is to say of a call that nobody came out of.
    return loud or ([] if graph.roots or graph.cycles else found)


def _different(roll: Roll, graph: Graph, difference: Difference) -> Draft:
    draft = mismatch.judge(roll, difference, _behind(graph, difference.calls))
    if not difference.tie:
        return draft
    draft = dataclasses.replace(draft, rivals=(*draft.rivals, *_PARTED))
    # Two against two: ranks that do the same in another group tell which side is the odd one.
    odd = {rank for shift in roll.snapshot.shifts for rank in shift.ranks} & set(difference.calls)
    if not odd or len(odd) == len(difference.calls):
        return draft
    others = next((shift.others for shift in roll.snapshot.shifts if odd & set(shift.ranks)), ())
    agree = words.ranks_text([rank for rank in others if rank not in odd]) if others else ""
    how = f"{agree} did at this place what the other side does"
    if not agree:
        how = f"{words.ranks_text(odd)} made another call there in the steps before"
    return dataclasses.replace(
        draft,
        culprits=tuple(sorted(odd)),
        confidence=0.85,
        sentence=draft.sentence.replace("; nothing tells which side is wrong", "") + f"; {how}",
        where=next((call.site for rank, call in difference.calls.items() if rank in odd), draft.where),
        waiting=tuple(rank for rank in (*draft.waiting, *difference.calls) if rank not in odd),
    )


def _behind(graph: Graph, ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(Waiters(graph.blockers).of(ranks)))


def _shifted(roll: Roll, graph: Graph, shift: Shift) -> Draft:
    """Ranks that left calls out, or made calls of their own, before anything hung."""
    who = roll.place_name(shift.ranks[0]) if len(shift.ranks) == 1 else words.ranks_text(shift.ranks)
    call = shift.calls[0] if shift.calls else None
    name = _call_text(roll, call) if call is not None else "a call"
    more = f" and {words.count(shift.count - 1, 'more call')}" if shift.count > 1 else ""
    others = words.ranks_text(shift.others) if shift.others else ""
    waiting = _behind(graph, shift.ranks)
    before = shift.last_common
    after = f"after {_call_text(roll, before)}{words.at(before.site)} " if before is not None else ""
    if not shift.calls:
        return _counted(roll, shift, who, waiting)
    if _in_pair(shift):
        return _left_habit(roll, shift, who, waiting)
    if shift.kind == "skipped":
        did = f"did not make {name}{words.at(call.site) if call else ''}{more}, which {others} made"
    else:
        did = f"made {name}{words.at(call.site) if call else ''}{more}, which {others} did not make"
    return Draft(
        pitfall="data-dependent-skip" if shift.kind == "skipped" else "lone-collective",
        culprits=shift.ranks,
        confidence=0.85,
        proven=False,
        sentence=f"{after}{who} {did}: from there on its calls are the others' calls, moved by "
        f"{words.count(shift.count, 'call')}",
        why="Moved calls pair with the wrong ones of the other ranks and finish without a word as long as they are "
        "alike; the job stands still where they differ or run out, far from the cause.",
        where=call.site if call is not None else None,
        waiting=tuple(rank for rank in waiting if rank not in shift.ranks),
        rivals=(
            Rival("lone-collective" if shift.kind == "skipped" else "data-dependent-skip", 0.2,
                  "Does the line stand under a condition on the rank, or on this rank's data?"),
        ),
        evidence=tuple(
            Evidence("flight recorder", text, shift.ranks[0], roll.host(shift.ranks[0]), event.time)
            for event, text in _shift_evidence(roll, shift)
        ),
        involved=(*shift.ranks, *waiting),
    )  # fmt: skip


def _left_habit(roll: Roll, shift: Shift, who: str, waiting: tuple[int, ...]) -> Draft:
    """A send or receive more or less than in every step before."""
    rank = shift.ranks[0]
    call = next(call for call in shift.calls if call.kind in ("send", "recv"))
    habit = (
        f"{words.ranks_text(shift.others)} {words.verb(shift.others, 'makes', 'make')} there"
        if shift.others
        else ("it makes in every step")
    )
    name = f"{words.operation(call)}{words.at(call.site)}"
    did = {
        "skipped": f"left out a {name} that {habit}",
        "extra": f"made a {name} that {'no other rank of its kind' if shift.others else 'no other step'} has",
        "differs": f"left the order of its sends and receives at a {name}",
    }[shift.kind]
    peer = f" rank {call.peer} waits for it, or it for rank {call.peer}." if call.peer is not None else ""
    return Draft(
        pitfall="unmatched-send-recv",
        culprits=shift.ranks,
        confidence=0.8,
        proven=False,
        sentence=f"{who} {did}{_held(tuple(r for r in waiting if r != rank))}",
        why=f"A send and a receive meet only if both sides make the call.{peer} Its own earlier steps show what it "
        "makes otherwise.",
        where=call.site if shift.kind != "differs" else None,  # which of the two calls is wrong is not known
        waiting=tuple(other for other in waiting if other != rank),
        rivals=(Rival("uneven-steps", 0.15, "Do both sides run the same number of micro-batches in this step?"),),
        evidence=tuple(
            Evidence("flight recorder", text, rank, roll.host(rank), event.time)
            for event, text in _shift_evidence(roll, shift)
        ),
        involved=(rank, *waiting),
    )


def _counted(roll: Roll, shift: Shift, who: str, waiting: tuple[int, ...]) -> Draft:
    """The rings end alike, but one rank has begun more or fewer operations in all."""
    more = "more" if shift.kind == "extra" else "fewer"
    rank = shift.ranks[0]
    return Draft(
        pitfall="lone-collective" if shift.kind == "extra" else "data-dependent-skip",
        culprits=shift.ranks,
        confidence=0.7,
        proven=False,
        sentence=f"{who} has begun {words.count(shift.count, 'operation')} {more} than "
        f"{words.ranks_text(shift.others)}, which do the same work: it happened before the rings began",
        why="Its newest calls are those of the others, so all of them stand at one place of the program. What it left "
        "out or added is too old to be seen; a larger TORCH_FR_BUFFER_SIZE would show it.",
        where=None,
        waiting=tuple(other for other in waiting if other != rank),
        rivals=(Rival("unmatched-send-recv", 0.3, "Is it a send or receive that one side makes once more?"),),
        evidence=(
            Evidence(
                "flight recorder", f"{words.count(shift.count, 'operation')} {more} in all", rank, roll.host(rank)
            ),
        ),
        involved=(rank, *waiting),
    )


def _shift_evidence(roll: Roll, shift: Shift) -> list[tuple[Event, str]]:
    found = []
    if shift.last_common is not None:
        event = shift.last_common
        found.append((event, f"the last call that agrees: {_call_text(roll, event)}{words.at(event.site)}"))
    for event in shift.calls:
        whose = f"made by {words.ranks_text(shift.others)}" if shift.others else "made in the step before"
        if shift.kind == "extra":
            whose = "made here alone"
        found.append((event, f"{_call_text(roll, event)}{words.at(event.site)}, {whose}"))
    return found


def _call_text(roll: Roll, event: Event) -> str:
    number = f" number {event.seq}" if event.seq is not None else ""
    group = f" of {group_name(roll, event.group)}" if event.group else ""
    return f"{words.operation(event)}{number}{group}"


# --- ranks that did not come -----------------------------------------------------------------------------------------


def _standing_roots(roll: Roll, graph: Graph) -> list[int]:
    """Ranks that others wait for, whose own dump is of the same moment and shows no wait."""
    return [rank for rank in graph.roots if rank in roll.standings and not _stale(roll, rank)]


def _idle(roll: Roll, graph: Graph) -> list[int]:
    """Ranks that nobody waits for yet, and that stand still in no operation while others of their group, or of their
    kind, have begun more: a rank that had finished would be as far as any."""
    behind = {rank for rank, s in roll.standings.items() if s.process.dump is not None and s.process.dump.behind}
    furthest: dict[object, int] = {}
    own: dict[int, list[tuple[object, int]]] = {}
    for rank, standing in roll.standings.items():
        for group in standing.process.groups:
            places: list[object] = [group.key]
            if group.description not in ("", "undefined"):  # else nothing tells which groups do the same work
                places.append((group.description, len(roll.members.get(group.key, ())), group.backend))
            for place in places:
                furthest[place] = max(furthest.get(place, 0), group.enqueued or 0)
                own.setdefault(rank, []).append((place, group.enqueued or 0))
    return [
        rank
        for rank, numbers in own.items()
        if rank not in graph.blockers
        and rank not in graph.roots
        and not _stale(roll, rank)
        and (rank in behind or any(number < furthest[place] for place, number in numbers))
    ]


def _stale(roll: Roll, rank: int) -> bool:
    standing = roll.standings[rank]
    dump = standing.process.dump
    return not standing.thread.stack if dump is None else dump.stale


def _absent(roll: Roll, graph: Graph, ranks: Sequence[int]) -> list[Draft]:
    """One draft for each rank that did not come; those held up at one place by the same operation are one cause."""
    found: list[Draft] = []
    by_call: dict[tuple[str, int | None], list[int]] = {}
    for rank in ranks:
        wait = _first_wait_for(roll, graph, rank)
        by_call.setdefault((wait.group, wait.seq) if wait is not None else ("", rank), []).append(rank)
    for together_at in by_call.values():
        stacks = [rank for rank in together_at if roll.standings[rank].thread.stack]
        by_place: dict[object, list[int]] = {}
        for rank in stacks:
            by_place.setdefault(roots.place_of(roll, roll.standings[rank]), []).append(rank)
        for here in by_place.values():
            draft = roots.judge(roll, here, graph.waiting_for(tuple(here)))
            found.append(dataclasses.replace(draft, confidence=min(draft.confidence, _by_time(roll) + 0.2)))
        rest = tuple(rank for rank in together_at if rank not in stacks)
        if rest:
            found.append(_did_not_come(roll, graph, rest))
    return found


def _did_not_come(roll: Roll, graph: Graph, ranks: tuple[int, ...]) -> Draft:
    waiting = graph.waiting_for(ranks)
    wait = _first_wait_for(roll, graph, ranks[0])
    who = roll.place_name(ranks[0]) if len(ranks) == 1 else words.ranks_text(ranks)
    last = next(iter(reversed(roll.standings[ranks[0]].process.ring)), None)
    if last is None:
        stands = f"{words.verb(ranks, 'Its dump shows', 'Their dumps show')} no operation at all."
    else:
        stands = (
            f"The last call of {roll.place_name(ranks[0])} is {_call_text(roll, last)}{words.at(last.site)}, and it is "
            "done: it waits in nothing, and stands in its own code after that line."
        )
    return Draft(
        pitfall="process-stuck",
        culprits=ranks,
        confidence=_by_time(roll),
        proven=False,
        sentence=f"{who} did not come to {_wait_text(roll, wait)}{_held(waiting)}",
        why=f"{stands} Who waits in another call only passes this wait on.",
        where=last.site if last is not None and last.site is not None else None,
        waiting=waiting,
        fix=(f"If the job still runs: `py-spy dump --pid PID` of {who} shows its line.",),
        rivals=(
            Rival("rank-left-early", 0.2, f"Has the process of {who} ended, and with which code? See its log's end."),
            Rival("loader-stalled", 0.2, "Its stack is in a DataLoader."),
            Rival("data-dependent-skip", 0.15, "Did it leave out a call that the others made?"),
        ),
        evidence=_evidence(roll, graph, ranks),
        involved=(*ranks, *waiting),
    )  # fmt: skip


def _by_time(roll: Roll) -> float:
    """The shorter the job has been quiet, the likelier this rank is only late. Times of copied files tell nothing."""
    quiet = roll.snapshot.quiet_for
    return 0.45 if 0 < quiet < 5 else 0.6 if 0 < quiet < 30 else 0.7


def _held(waiting: Sequence[int]) -> str:
    if not waiting:
        return ""
    return f"; {words.ranks_text(waiting)} {words.verb(waiting, 'waits', 'wait')} because of it"


def _wait_text(roll: Roll, wait: Wait | None) -> str:
    if wait is None:
        return "its next operation"
    if wait.kind == "p2p":
        return f"the other side of a {words.operation(wait)}{words.at(wait.site)}"
    number = f" number {wait.seq}" if wait.seq is not None else ""
    return f"{words.operation(wait)}{number} of {group_name(roll, wait.group)}{words.at(wait.site)}"


def _first_wait_for(roll: Roll, graph: Graph, rank: int) -> Wait | None:
    """The oldest operation in which others wait for this rank itself."""
    waits = [
        wait
        for other, others in graph.blockers.items()
        if rank in others and (wait := roll.standings[other].wait) is not None
    ]
    # Of one operation the newest arrival counts: before it the operation waited for others, too.
    last: dict[tuple[str, int | None, int | None], Wait] = {}
    for wait in waits:
        key = (wait.group, wait.seq, wait.peer)
        if key not in last or (wait.since or 0.0) > (last[key].since or 0.0):
            last[key] = wait
    return min(last.values(), key=lambda wait: (wait.since or 0.0, wait.group), default=None)


def _evidence(roll: Roll, graph: Graph, ranks: Sequence[int]) -> tuple[Evidence, ...]:
    found = []
    for rank in ranks[:8]:
        standing = roll.standings.get(rank)
        if standing is None or standing.process.dump is None:
            continue
        for event in standing.process.ring[-2:]:
            text = f"{_call_text(roll, event)}{words.at(event.site)}"
            found.append(Evidence(f"dump {standing.process.dump.file}", text, rank, standing.process.host, event.time))
    told: set[tuple[str, int | None]] = set()
    for rank, others in graph.blockers.items():
        wait = roll.standings[rank].wait
        if wait is None or not others & set(ranks) or (wait.group, wait.seq) in told or len(told) >= 8:
            continue
        told.add((wait.group, wait.seq))
        found.append(Evidence("flight recorder", f"waits in {_wait_text(roll, wait)} for {words.ranks_text(others)}",
                              rank, roll.host(rank), wait.since))  # fmt: skip
    return tuple(found)


# --- ranks without a dump --------------------------------------------------------------------------------------------


def _without_dump(roll: Roll, graph: Graph, known: Sequence[Draft]) -> list[Draft]:
    """Ranks of which nothing is known are suspects, unless they may be held up by a cause that is known."""
    lost = {rank for rank in graph.roots if rank not in roll.standings or _stale(roll, rank)}
    if not lost:
        return []
    named = {rank for draft in known for rank in draft.culprits}
    held = _held_with(roll, graph, named, lost)
    suspects = sorted(lost - held - named)
    found: list[Draft] = []
    while suspects:
        waits = {rank: _first_wait_for(roll, graph, rank) for rank in suspects}
        since = {rank: wait.since or 0.0 for rank, wait in waits.items() if wait is not None}
        if not since:
            break
        first = min(since.values())
        chosen = tuple(rank for rank in suspects if since.get(rank, first + 1) <= first + _RACE_S)
        same = tuple(rank for rank in chosen if waits[rank] is not None and _same_key(waits[rank], waits[chosen[0]]))
        found.append(_lost(roll, graph, same))
        named |= set(same)
        held = _held_with(roll, graph, named, lost)
        suspects = sorted(lost - held - named)
    return found


def _same_key(one: Wait | None, other: Wait | None) -> bool:
    return (
        one is not None and other is not None and (one.group, one.seq, one.peer) == (other.group, other.seq, other.peer)
    )


def _held_with(roll: Roll, graph: Graph, named: set[int], lost: set[int]) -> set[int]:
    """The ranks that wait because of the named ones; a lost rank too, if it shares a group with one of them: it may
    wait there for a call that this one has not come to."""
    waiters = Waiters(graph.blockers)
    held = waiters.of(named)
    while True:
        stuck = (named | held) - lost
        waited = {
            wait.group
            for rank in held
            if (wait := _wait_of(roll, rank)) is not None and wait.kind != "p2p" and graph.blockers[rank] & stuck
        }
        groups = [
            members
            for key, members in roll.members.items()
            if key in waited
            or ((group := roll.groups.get(key)) is not None
                and group.description != "default_pg" and not stuck.isdisjoint(members))
        ]  # fmt: skip
        new = {rank for rank in lost - held - named if any(rank in members for members in groups)}
        if not new:
            return held
        held |= new
        held |= waiters.of(named | held)


def _wait_of(roll: Roll, rank: int) -> Wait | None:
    standing = roll.standings.get(rank)
    return standing.wait if standing is not None else None


def _lost(roll: Roll, graph: Graph, ranks: tuple[int, ...]) -> Draft:
    waiting = graph.waiting_for(ranks)
    wait = _first_wait_for(roll, graph, ranks[0])
    stale = [rank for rank in ranks if rank in roll.standings]
    who = words.ranks_text(ranks)
    if len(stale) == len(ranks):
        left = f"{who} left a dump from before the others stood still"
    else:
        dumps = any(standing.process.dump is not None for standing in roll.standings.values())
        left = f"{who} left no dump" if dumps else f"of {who} there is no stack"
    return Draft(
        pitfall="process-stuck",
        culprits=ranks,
        confidence=0.6 if len(ranks) == 1 else TIE,
        proven=False,
        sentence=f"{left}, and everybody else who takes part in {_wait_text(roll, wait)} has come{_held(waiting)}",
        why="A process that has died, or hangs where nothing in it can run, leaves nothing: of all ranks it is the "
        "prime suspect. Every rank that left something waits for another.",
        where=None,
        waiting=waiting,
        fix=(
            f"Look at the end of the log of {who}, and at `dmesg -T` on its host, for when it fell silent.",
        ),
        rivals=(
            Rival("crashed-by-signal", 0.3, f"The launcher's last lines say with which code or signal {who} ended."),
            Rival("host-out-of-memory", 0.25, "`dmesg -T | grep -i 'killed process'` on its host."),
            Rival("rank-left-early", 0.15, f"Does the log of {who} end as if all were done?"),
        ),
        evidence=_evidence(roll, graph, ranks),
        involved=(*ranks, *waiting),
    )  # fmt: skip
