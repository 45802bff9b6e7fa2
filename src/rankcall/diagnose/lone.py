"""Calls that only some ranks reach: a collective under a condition, an evaluation on one rank, an early return."""

from __future__ import annotations

import re

from rankcall.diagnose import words
from rankcall.diagnose.case import Case, Party, left
from rankcall.diagnose.drafts import TIE, Draft
from rankcall.diagnose.frames import code_of
from rankcall.diagnose.kinds import algorithm
from rankcall.diagnose.source import Guard, Jump, Spot
from rankcall.findings import Rival
from rankcall.snapshot import Event, Frame

_SAVING = re.compile(r"state_dict|full_tensor|consolidate|\b(dcp|checkpoint)\.(async_)?save", re.IGNORECASE)


def evaluation(case: Case, party: Party) -> Draft | None:
    """`party` alone runs a wrapped model's forward that belongs to no training step."""
    event = party.event
    if event is None or event.kind not in ("eval-forward", "forward"):
        return None
    rest = case.rest(party.ranks)
    guard = case.rank_guard(party)
    # The same line may serve both: what counts is who was there without gradients.
    if case.seen(rest, event.site, kind="eval-forward" if event.kind == "eval-forward" else ""):
        return None
    if guard is None and (event.kind == "forward" or not _alone_without_guard(case, party)):
        return None
    condition = f"It stands under `{guard.said}` ({words.place(Frame(guard.file, guard.line))}). " if guard else ""
    ranks = party.ranks
    return Draft(
        pitfall="evaluation-on-one-rank",
        culprits=ranks,
        confidence=0.92 if guard is not None else 0.8,
        proven=True,
        sentence=f"{case.who(ranks)} alone {words.verb(ranks, 'runs', 'run')} the wrapped model"
        f"{words.at(event.site)}{case.ending(ranks, event.site)}",
        why=f"{condition}A wrapped model's forward is a collective: DDP sends its buffers, FSDP gathers its "
        "parameters, in evaluation too. The others do not take part.",
        where=event.site,
        waiting=rest,
        fix=(f"At {words.place(event.site)} call the inner module (`model.module(…)` of DDP), or evaluate on all "
             "ranks.",),
        rivals=() if guard is not None else (
            Rival("data-dependent-skip", 0.2, "Do all ranks evaluate, and this one came there too soon?"),
        ),
        evidence=case.evidence(ranks),
        involved=(*ranks, *rest),
    )  # fmt: skip


def _alone_without_guard(case: Case, party: Party) -> bool:
    """No condition on the rank is seen: then ranks that came to their evaluation first may only have fewer steps."""
    rest = case.rest(party.ranks)
    if len(party.ranks) > len(rest):
        return False
    ends = [case.roll.standings[rank].process.counters.loader_ends for rank in rest]
    if any(case.roll.standings[rank].process.counters.loader_ends > min(ends) for rank in party.ranks):
        return False
    return not case.program.known(party.site) or case.program.condition(party.site) is not None


def exclusive(case: Case) -> tuple[Party, Party, Guard] | None:
    """Two parties in collectives on the two sides of one condition."""
    callers = [party for party in case.parties if party.is_collective]
    for index, one in enumerate(callers):
        for other in callers[index + 1 :]:
            guard = case.program.exclusive(case.path(one), case.path(other)) or _early_branch(case, one, other)
            if guard is not None:
                return one, other, guard
    return None


def _early_branch(case: Case, one: Party, other: Party) -> Guard | None:
    """`if …: a(); return` followed by `b()`: two branches without an else."""
    for first, second in ((one, other), (other, one)):
        if first.site is None or second.site is None or first.site.file != second.site.file:
            continue
        mine, theirs = case.program.spot(first.site), case.program.spot(second.site)
        if mine.function != theirs.function or not mine.guards or first.site.line > second.site.line:
            continue
        guard = mine.guards[0]
        jumps = case.program.jumps(first.site.file, first.site.line, second.site.line)
        inside = [j for j in jumps if j.guard == guard and j.kind in ("return", "continue", "break")]
        if inside and guard not in theirs.guards:
            return guard
    return None


def guarded_by_rank(case: Case) -> tuple[Party, Guard] | None:
    """A party in a collective that stands under a condition on the rank which the others' calls do not share."""
    for party in reversed(case.parties):
        if not party.is_collective:
            continue
        guard = case.rank_guard(party)
        if guard is None or case.seen(case.rest(party.ranks), party.site):
            continue
        shared = [case.rank_guard(other) for other in case.others(party) if other.event is not None]
        if all(other is None or (other.file, other.line) != (guard.file, guard.line) for other in shared):
            return party, guard
    return None


def collective(case: Case, party: Party, guard: Guard | None, *, confidence: float = 0.92) -> Draft:
    """`party` is in a collective that the others do not come to."""
    ranks, rest = party.ranks, case.rest(party.ranks)
    event = party.event
    assert event is not None
    code = code_of(party.site, case.roll.snapshot.sources)
    condition = _condition(guard)
    return Draft(
        pitfall="sharded-save-on-one-rank" if guard is not None and _saves(case, event) else "lone-collective",
        culprits=ranks,
        confidence=confidence,
        proven=True,
        sentence=f"{case.who(ranks)} alone {words.verb(ranks, 'calls', 'call')} {words.operation(event)}"
        f"{words.at(event.site)}{', in the except branch' if guard and guard.branch == 'except' else ''}"
        f"{case.ending(ranks, event.site)}",
        why=f"{condition}The others went on to {_next_of(case, party)} and do not come to `{code}`."
        if code
        else f"{condition}The others went on to {_next_of(case, party)}.",
        where=event.site,
        waiting=rest,
        fix=(f"Take {words.operation(event)}{words.at(event.site)} out of the condition, or let every rank reach it.",),
        rivals=(Rival("collective-mismatch", 0.2, "Was another call meant to be its partner?"),),
        evidence=case.evidence(ranks),
        involved=(*ranks, *rest),
    )


def _condition(guard: Guard | None) -> str:
    if guard is None:
        return ""
    return f"It stands under `{guard.said}` ({words.place(Frame(guard.file, guard.line))}). "


def _next_of(case: Case, party: Party) -> str:
    other = next(iter(case.others(party)), None)
    if other is None or left(other) or other.event is None:
        return "the end"
    return f"{words.operation(other.event)}{words.at(other.site)}"


def _saves(case: Case, event: Event) -> bool:
    if algorithm(event.op) == "barrier":
        return False
    return _SAVING.search(code_of(event.site, case.roll.snapshot.sources)) is not None


def missed(case: Case, party: Party, reference: Party, guard: Guard | None, place: Frame | None) -> Draft:
    """`party` did not come to the collective that `reference` is in."""
    pitfall = "data-dependent-skip" if _rest_of_step(case, reference, place) else "lone-collective"
    rival = "lone-collective" if pitfall == "data-dependent-skip" else "data-dependent-skip"
    ranks, rest = party.ranks, case.rest(party.ranks)
    event = reference.event
    assert event is not None
    tie = len(ranks) == len(rest) and guard is None
    at_place = words.at(place)
    how = f" {_condition_text(guard)}{at_place} leads past it." if guard is not None else ""
    return Draft(
        pitfall=pitfall,
        culprits=ranks,
        confidence=TIE if tie else 0.88 if guard is not None else 0.7,
        proven=True,
        sentence=f"{case.who(ranks)} {words.verb(ranks, 'has', 'have')} not come to {words.operation(event)}"
        f"{words.at(event.site)} that {words.ranks_text(rest)} {words.verb(rest, 'is', 'are')} in: "
        f"{words.verb(ranks, 'it', 'they')} went past it{at_place}, and "
        f"{case.stands(ranks)}",
        why=f"Only some ranks reach {words.operation(event)}{words.at(event.site)}.{how}",
        where=place or party.site,
        waiting=rest,
        fix=(f"Let every rank reach {words.operation(event)}{words.at(event.site)}, with an empty contribution if it "
             "has nothing.",),
        rivals=(Rival(rival, 0.25, "Does the condition depend on this rank's data?"),),
        evidence=case.evidence(ranks),
        involved=(*ranks, *rest),
    )  # fmt: skip


def _rest_of_step(case: Case, reference: Party, place: Frame | None) -> bool:
    """True when the way past is a `continue`: with the call, the rest of the step was left out."""
    if place is None or reference.site is None:
        return False
    jumps = case.program.jumps(place.file, place.line, reference.site.line)
    return any(jump.kind == "continue" and jump.place == place for jump in jumps)


def _condition_text(guard: Guard) -> str:
    return f"`{guard.said}`"


def way_past(case: Case, site: Frame | None) -> tuple[Guard, Frame] | None:
    """A condition that leads past a collective: around it, or a return or continue before it in its function."""
    if site is None:
        return None
    spot = case.program.spot(site)
    for guard in spot.guards:
        if guard.branch in ("if", "else"):
            return guard, Frame(guard.file, guard.line, spot.function)
    for jump in case.program.jumps(site.file, spot.first + 1, site.line - 1):
        if jump.guard is None or jump.guard.line <= spot.first:
            continue
        if jump.kind == "return" or (jump.kind == "continue" and _in_same_loop(case, jump, spot)):
            return jump.guard, jump.place
    return None


def _in_same_loop(case: Case, jump: Jump, spot: Spot) -> bool:
    """A continue passes only what its own loop holds."""
    loops = case.program.spot(Frame(jump.file, jump.line)).loops
    return bool(loops) and any(loop.line == loops[0].line for loop in spot.loops)


def mismatch(case: Case, one: Party, other: Party, guard: Guard | None) -> Draft:
    """Two parties in different collectives at the same place."""
    small, large = sorted((one, other), key=lambda party: len(party.ranks))
    tie = len(small.ranks) == len(large.ranks)
    ranks = tuple(sorted((*one.ranks, *other.ranks))) if tie else small.ranks
    texts = [_in(party) for party in (small, large)]
    condition = f" The two calls stand on the two sides of `if {guard.text}`" \
                f" ({words.place(Frame(guard.file, guard.line))})." if guard else ""  # fmt: skip
    return Draft(
        pitfall="collective-mismatch",
        culprits=ranks,
        confidence=TIE if tie else 0.88,
        proven=True,
        sentence=f"the ranks are in different operations at the same place of the program: {' and '.join(texts)}"
        + ("; nothing tells which side is wrong" if tie else ""),
        why=f"Every rank of a group has to call the same operation in the same order.{condition}",
        where=small.site,
        waiting=tuple(rank for rank in case.rest(ranks)),
        rivals=(Rival("lone-collective", 0.3, "Is one of the two calls meant for these ranks only?"),),
        evidence=case.evidence(ranks),
        involved=tuple(case.parting.lanes),
    )


def _in(party: Party) -> str:
    event = party.event
    assert event is not None
    return (
        f"{words.ranks_text(party.ranks)} {words.verb(party.ranks, 'is', 'are')} in {words.operation(event)}"
        f"{words.at(event.site)}"
    )
