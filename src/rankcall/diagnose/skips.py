"""Ranks that left out a backward, or a whole batch: where in the source that can happen."""

from __future__ import annotations

from collections.abc import Sequence

from rankcall.diagnose import words
from rankcall.diagnose.case import Case, Party, left
from rankcall.diagnose.drafts import Draft
from rankcall.diagnose.frames import code_of
from rankcall.diagnose.rings import backward_site, skipped_backwards, skipped_batches, training_site
from rankcall.findings import Rival
from rankcall.snapshot import Event, Frame

Candidate = tuple[Frame, str]


def backward_skipped(case: Case, party: Party, reference: Party) -> Draft:
    """`party` came from a forward and did not go into the backward that `reference` is in."""
    forward = case.phase_before(party)
    since = case.step_at(party.ranks)
    others = _others(case, party.ranks)
    why = (
        f"After the same forward{words.at(forward.site if forward else None)} {others} went into backward"
        f"{words.at(reference.site)}, {case.who(party.ranks)} did not"
    )
    return _backward_draft(case, party, forward.site if forward else None, reference.site, since, why)


def backward_missing(case: Case, party: Party) -> Draft:
    """`party` has made fewer backwards than forwards, unlike the others: its ring no longer shows where."""
    standing = case.roll.standings[party.ranks[0]]
    backward = next((site for rank in case.rest(party.ranks) if (site := backward_site(case.roll.standings[rank]))),
                    None)  # fmt: skip
    skipped = skipped_backwards(standing)
    since = skipped[0].step if skipped else None
    why = (
        f"{words.verb(party.ranks, 'Its', 'Their')} counters show a forward without its backward, unlike those of "
        f"{words.ranks_text(case.rest(party.ranks))}: {case.who(party.ranks)} skipped one"
    )
    return _backward_draft(case, party, training_site(standing), backward or backward_site(standing), since, why)


def _backward_draft(
    case: Case, party: Party, forward: Frame | None, backward: Frame | None, since: int | None, why: str
) -> Draft:
    ranks = party.ranks
    found = between(case, forward, backward, ranks)
    place = found[0][0] if found else party.site
    how = f": {found[0][1]}" if found else ""
    since_text = f" since step {since}" if since is not None else ""
    rest = case.rest(ranks)
    return Draft(
        pitfall="data-dependent-skip",
        culprits=ranks,
        confidence=0.92 if len(found) == 1 else 0.85 if found else 0.75,
        proven=True,
        sentence=f"{case.who(ranks)} {_counts(case, ranks)}{since_text}: {words.verb(ranks, 'it', 'they')} skipped one"
        f"{words.at(place)}{case.ending(ranks)}",
        why=f"{why}{how}. From there on every backward met the wrong partner.",
        where=place,
        waiting=rest,
        fix=_fixes(case, place),
        rivals=_rivals(case, party),
        evidence=case.evidence(ranks),
        involved=(*ranks, *rest),
    )


def _counts(case: Case, ranks: Sequence[int]) -> str:
    counters = [case.roll.standings[rank].process.counters for rank in ranks]
    others = [case.roll.standings[rank].process.counters for rank in case.rest(ranks)]
    have = words.verb(ranks, "has", "have")
    but = "but" if counters[0].forwards > counters[0].backwards else "and"
    mine = f"{have} {counters[0].forwards} forwards {but} {counters[0].backwards} backwards"
    both = {(c.forwards, c.backwards) for c in others}
    if len(both) != 1:
        return mine
    forwards, backwards = both.pop()
    rest = _others(case, ranks)
    if forwards > backwards + 1:  # a model of several wrapped parts: only the backwards are one for one
        return f"{have} {counters[0].backwards} backwards ({rest} {backwards})"
    theirs = f"{forwards} of both" if forwards == backwards else f"{forwards} and {backwards}"
    return f"{mine} ({rest} {theirs})"


def _others(case: Case, ranks: Sequence[int]) -> str:
    """`the others`, or the only other one by its number."""
    rest = case.rest(ranks)
    return words.ranks_text(rest) if len(rest) == 1 else "the others"


def _fixes(case: Case, place: Frame | None) -> tuple[str, ...]:
    if place is None:
        return ()
    if code_of(place, case.roll.snapshot.sources).startswith(("except", "with ")):
        return (f"Let the rank fail{words.at(place)}, or agree with the others (all-reduce a flag) before going on.",)
    return (
        f"At {words.place(place)} let all ranks decide together: all-reduce the condition (ReduceOp.MAX) and skip on "
        "every rank or on none.",
    )


def _rivals(case: Case, party: Party) -> tuple[Rival, ...]:
    if left(party):
        return (Rival("rank-left-early", 0.2, "Did the program mean to end there?"),)
    return (Rival("lone-collective", 0.1, "Does the call that it came to next belong to the loop on every rank?"),)


def between(case: Case, forward: Frame | None, backward: Frame | None, ranks: Sequence[int]) -> list[Candidate]:
    """The lines that can lead past `backward` after `forward`, most likely first."""
    found: list[Candidate] = []
    program = case.program
    if forward is not None and backward is not None:
        outer = {(guard.file, guard.line) for guard in program.spot(forward).guards}
        for guard in program.spot(backward).guards:
            if (guard.file, guard.line) not in outer and guard.branch in ("if", "else"):
                found.append((Frame(guard.file, guard.line, program.spot(backward).function),
                              f"the backward stands under `if {guard.text}`"))  # fmt: skip
        found += _jumps_between(case, forward, backward)
    swallowed = _swallowed(case, forward, ranks)
    return swallowed + found if _handled(case, ranks) else found + swallowed


def _jumps_between(case: Case, forward: Frame, backward: Frame) -> list[Candidate]:
    spot = case.program.spot(forward)
    other = case.program.spot(backward)
    if forward.file == backward.file and spot.function == other.function:
        spans = [(forward.file, forward.line + 1, backward.line - 1)]
    else:
        spans = [(forward.file, forward.line + 1, spot.last), (backward.file, other.first, backward.line - 1)]
    found: list[Candidate] = []
    for file, first, last in spans:
        for jump in case.program.jumps(file, first, last):
            # The plain return at a function's end leads on, not away.
            if jump.kind in ("continue", "break", "return") and jump.guard is not None and jump.guard.line >= first:
                code = code_of(jump.place, case.roll.snapshot.sources)
                found.append((jump.place, f"`{code}` leads to `{jump.kind}`"))
    return list(dict.fromkeys(found))


def _handled(case: Case, ranks: Sequence[int]) -> bool:
    """True when a record shows that an exception was swallowed on one of these ranks and not on the others."""
    mine = any(case.roll.standings[rank].process.handled for rank in ranks)
    return mine and not any(case.roll.standings[rank].process.handled for rank in case.rest(ranks))


def _swallowed(case: Case, inside: Frame | None, ranks: Sequence[int]) -> list[Candidate]:
    raised = ""
    for rank in ranks:
        for note in case.roll.standings[rank].process.handled:
            raised = f"{note.type.rpartition('.')[2]} was swallowed there"
    return [
        (frame, raised or f"`{code_of(frame, case.roll.snapshot.sources)}` lets it go on after an error")
        for frame in case.program.handlers_around(inside)
    ]


def batch_skipped(case: Case, party: Party, work: Frame | None) -> Draft:
    """`party` drew a batch that it did not work on: it comes short of steps at the loop's end."""
    ranks = party.ranks
    found = before_work(case, work, ranks)
    place = found[0][0] if found else work or party.site
    events = [event for rank in ranks for event in skipped_batches(case.roll.standings[rank])]
    return _short(case, ranks, place, found, events, "drew batches that it never worked on")


def before_work(case: Case, work: Frame | None, ranks: Sequence[int]) -> list[Candidate]:
    """The lines in the loop that can go on to the next batch before the work at `work` is done."""
    found: list[Candidate] = []
    spot = case.program.spot(work)
    if work is not None and not spot.loops:
        # The work is a function of its own, called in the loop: a return before it skips the batch.
        for jump in case.program.jumps(work.file, spot.first + 1, work.line - 1):
            if jump.kind == "return" and jump.guard is not None and jump.guard.line > spot.first > 0:
                code = code_of(jump.place, case.roll.snapshot.sources)
                found.append((jump.place, f"`{code}` leads to `return`"))
    for loop in case.program.loops_around(work):
        last = work.line if work is not None and loop.holds(work) else loop.end
        for jump in case.program.jumps(loop.file, loop.line + 1, last):
            if jump.kind == "continue" and jump.guard is not None:
                code = code_of(jump.place, case.roll.snapshot.sources)
                found.append((jump.place, f"`{code}` leads to `continue`"))
    if found:
        return list(dict.fromkeys(found))
    # A handler outside the loop would leave it, not go on to the next batch.
    loops = case.program.loops_around(work)
    return [one for one in _swallowed(case, work, ranks) if any(loop.holds(one[0]) for loop in loops)]


def _short(
    case: Case, ranks: Sequence[int], place: Frame | None, found: list[Candidate], events: list[Event], what: str
) -> Draft:
    rest = case.rest(ranks)
    step = next((event.step for event in events if event.step is not None), None)
    since = f" in step {step}" if step is not None else ""
    how = f": {found[0][1]}" if found else ""
    sentence = (
        f"{case.who(ranks)} {case.short_of_steps(ranks)}: {words.verb(ranks, 'it', 'they')} skipped a batch{since}"
        f"{words.at(place)}{case.ending(ranks)}"
    )
    return Draft(
        pitfall="data-dependent-skip",
        culprits=tuple(ranks),
        confidence=0.9 if len(found) == 1 else 0.8,
        proven=True,
        sentence=sentence,
        why=f"{words.capital(case.who(ranks))} {what}{how}. {words.verb(ranks, 'Its', 'Their')} steps since then met "
        f"other batches of the others, and {words.verb(ranks, 'it', 'they')} ran out first.",
        where=place,
        waiting=rest,
        fix=_fixes(case, place),
        rivals=(Rival("uneven-steps", 0.2, "Compare len(loader) on the ranks: equal lengths point to the skip."),),
        evidence=case.evidence(ranks),
        involved=(*ranks, *rest),
    )
