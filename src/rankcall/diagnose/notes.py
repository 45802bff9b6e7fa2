"""Findings beside the verdict: slow ranks, slow saves, silent mismatches. Notes never stop a job."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from statistics import median

from rankcall.diagnose import blame, mismatch, parting, words
from rankcall.diagnose.case import Case
from rankcall.diagnose.drafts import Draft
from rankcall.diagnose.graph import Graph
from rankcall.diagnose.rings import forward_excess
from rankcall.diagnose.roll import Roll, Standing
from rankcall.findings import Evidence, Severity
from rankcall.snapshot import Event

SLOW_RATIO = 2.0
SLOW_STEP_S = 0.02  # less than this a step is noise
FEWEST_STEPS = 10
SLOW_SAVE_S = 5.0
# After one of these begins, a rank may be waiting for others rather than working.
_WAITING = frozenset({"collective", "wait", "send", "recv", "backward", "new-group", "init", "destroy"})
# A save is told by a note of its own.
_OTHER_TIME = _WAITING | {"save"}


def notes(roll: Roll) -> list[tuple[Draft, Severity]]:
    """What is worth saying of a job that ended well."""
    found: list[tuple[Draft, Severity]] = []
    slow_save = _slow_save(roll)
    if slow_save is not None:
        found.append((slow_save, "note"))
    skipped = _silent_skip(roll)
    if skipped is not None:
        found.append((skipped, "note"))
    slow = _straggler(roll)
    if slow is not None:
        found.append((slow, "note"))
    return found


def silent_mismatches(roll: Roll, verdict: Draft | None) -> list[tuple[Draft, Severity]]:
    """The first provable difference that the library let pass, unless the verdict says the same."""
    if verdict is not None and verdict.pitfall in ("collective-mismatch", "shape-mismatch", "uneven-gather"):
        return []
    ended = roll.snapshot.outcome == "completed"
    for difference in mismatch.differences(roll):
        if not _numbers_agree(roll, difference):
            continue
        if difference.aspect in ("reduction", "root", "dtype") or ended:
            draft = mismatch.judge(roll, difference)
            said = f"{draft.sentence}. No error came of it: the result is wrong without a word"
            return [(dataclasses.replace(draft, sentence=said), "warning")]
    return []


def _numbers_agree(roll: Roll, difference: mismatch.Difference) -> bool:
    """Whether the ranks' numbers count the same things up to here: operations that no hook sees (sends of the group
    object itself, say) shift one rank's numbers, and then one number is not one operation."""
    before: set[tuple[int, str] | None] = set()
    for rank in difference.calls:
        earlier = [
            event
            for event in roll.standings[rank].process.ring
            if event.kind == "collective" and event.group == difference.group
            if event.seq is not None and event.seq < difference.seq
        ]
        last = earlier[-1] if earlier else None
        before.add((last.seq or 0, last.op) if last is not None else None)
    return len(before) == 1


def _silent_skip(roll: Roll) -> Draft | None:
    """A backward that one rank left out and that no error came of: later steps mixed different batches."""
    excess = {rank: forward_excess(standing) for rank, standing in roll.standings.items()}
    if len(set(excess.values())) < 2 or not roll.members:
        return None
    found = parting.find(roll, max(roll.members, key=lambda key: len(roll.members[key])))
    draft = blame.skipped(Case(roll, Graph({}, (), (), ()), found)) if found is not None else None
    if draft is None or draft.pitfall != "data-dependent-skip":
        return None
    rank = draft.culprits[0]
    counters = roll.standings[rank].process.counters
    return dataclasses.replace(
        draft,
        sentence=f"{roll.place_name(rank)} has {counters.forwards} forwards but {counters.backwards} backwards, unlike "
        f"the others: a backward was skipped{words.at(draft.where)}. No error came of it, but every step since mixed "
        "batches of different steps",
    )


def _straggler(roll: Roll) -> Draft | None:
    arrivals = _last_arrivals(roll)
    for forward in (True, False):
        found = {rank: _own_time(s, arrivals, forward=forward) for rank, s in roll.standings.items()}
        times = {rank: time for rank, time in found.items() if time is not None}
        slow = _outliers(times)
        if slow:
            return _slow_draft(roll, slow, times)
    return None


def _last_arrivals(roll: Roll) -> dict[tuple[str, int], float]:
    """When the last rank entered each collective that all members' rings show: until then the others waited."""
    entered: dict[tuple[str, int], list[float]] = {}
    for standing in roll.standings.values():
        for event in standing.process.ring:
            if event.kind == "collective" and event.seq is not None:
                entered.setdefault((event.group, event.seq), []).append(event.time - standing.process.clock_offset)
    return {key: max(times) for key, times in entered.items() if len(times) == len(roll.members.get(key[0], ()))}


def _own_time(standing: Standing, arrivals: dict[tuple[str, int], float], *, forward: bool) -> float | None:
    """Seconds a step that the rank spent outside calls that wait for others; forwards count as work or not."""
    ring = standing.process.ring
    steps = sum(1 for event in ring if event.kind == "step") or sum(1 for event in ring if event.kind == "backward")
    if steps < FEWEST_STEPS:
        return None
    started = False
    total = 0.0
    for event, following in pairwise(ring):
        started = started or event.kind in ("forward", "backward", "step")
        if started and event.kind not in _OTHER_TIME and (forward or event.kind not in ("forward", "eval-forward")):
            total += following.time - event.time
        elif started and event.kind == "collective" and (event.group, event.seq or 0) in arrivals:
            # What came after all had arrived was no waiting: the transfer, and the rank's own work behind it.
            ready = arrivals[event.group, event.seq or 0] + standing.process.clock_offset
            total += max(0.0, following.time - max(ready, event.time))
    return total / steps


def _outliers(times: dict[int, float]) -> tuple[int, ...]:
    if len(times) < 2:
        return ()
    usual = median(sorted(times.values())[: max(1, (len(times) + 1) // 2)])
    slow = [rank for rank, time in times.items() if time >= SLOW_RATIO * usual and time - usual > SLOW_STEP_S]
    return tuple(slow) if len(slow) * 2 <= len(times) and len(slow) < len(times) else ()


def _slow_draft(roll: Roll, slow: tuple[int, ...], times: dict[int, float]) -> Draft:
    others = [time for rank, time in times.items() if rank not in slow]
    worst = max(slow, key=lambda rank: times[rank])
    rest = tuple(rank for rank in times if rank not in slow)
    return Draft(
        pitfall="straggler",
        culprits=slow,
        confidence=0.7,
        proven=False,
        sentence=f"{words.ranks_text(slow)} {words.verb(slow, 'works', 'work')} {times[worst] * 1000:.0f} ms a step "
        f"on average outside collectives{_between(roll, worst)}, the others {median(others) * 1000:.0f} ms: they wait "
        f"for {words.verb(slow, 'it', 'them')}",
        why="",
        where=None,  # the ring tells between which events the time went, not at which line
        waiting=rest,
        evidence=(Evidence("record", "time between events, calls that wait left out", worst, roll.host(worst)),),
    )


def _between(roll: Roll, rank: int) -> str:
    """Between which two recorded lines most of the rank's own time went."""
    spent: dict[tuple[str, str], float] = {}
    for event, following in pairwise(roll.standings[rank].process.ring):
        if event.kind not in _WAITING:
            key = (words.place(event.site), words.place(following.site))
            spent[key] = spent.get(key, 0.0) + following.time - event.time
    if not spent:
        return ""
    first, last = max(spent, key=lambda key: spent[key])
    if first == last:
        return f" (most of it at {first})" if first else ""
    return f" (most of it between {first} and {last})" if first and last else ""


def _slow_save(roll: Roll) -> Draft | None:
    """One rank's save during which others stood in a collective."""
    for rank, standing in roll.standings.items():
        for event, following in pairwise(standing.process.ring):
            took = following.time - event.time
            if event.kind != "save" or took < SLOW_SAVE_S:
                continue
            held = tuple(other for other, s in roll.standings.items() if other != rank and _waited(s, event, following))
            if held:
                return _save_draft(roll, rank, event, took, held)
    return None


def _waited(standing: Standing, begin: Event, end: Event) -> bool:
    """True when this rank spent most of that time inside one call that waits."""
    for event, following in pairwise(standing.process.ring):
        if event.kind in _WAITING or event.kind == "forward":
            overlap = min(following.time, end.time) - max(event.time, begin.time)
            if overlap >= SLOW_SAVE_S * 0.8:
                return True
    return False


def _save_draft(roll: Roll, rank: int, event: Event, took: float, held: tuple[int, ...]) -> Draft:
    return Draft(
        pitfall="slow-checkpoint",
        culprits=(rank,),
        confidence=0.8,
        proven=False,
        sentence=f"{roll.place_name(rank)} saved for {words.duration(took)}{words.at(event.site)}, while "
        f"{words.ranks_text(held)} waited for it",
        why="",
        where=event.site,
        waiting=held,
        evidence=(Evidence("record", f"save{words.at(event.site)}", rank, roll.host(rank), event.time),),
    )
