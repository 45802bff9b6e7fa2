"""Who is to blame for a parting, and what it is called: rules over a case, the most telling first."""

from __future__ import annotations

from rankcall.diagnose import handling, leaving, lone, skips, threads
from rankcall.diagnose.case import Case, Party, left
from rankcall.diagnose.drafts import Draft
from rankcall.diagnose.frames import same_place
from rankcall.diagnose.source import Guard
from rankcall.snapshot import Frame

_STEP = ("forward", "backward")


def judge(case: Case) -> Draft | None:
    """A verdict for this parting, or None when no rule fits."""
    if len(case.parties) < 2:
        return None
    for rule in (
        threads.interleaved,
        _exception_in_hand,
        _evaluation,
        _branches,
        _rank_guard,
        skipped,
        _goes_on,
        _collectives,
        _nobody_came,
    ):
        draft = rule(case)
        if draft is not None:
            return draft
    return None


def _exception_in_hand(case: Case) -> Draft | None:
    """A rank's `finally` meets nobody: its own exception, on the way out, has not been shown yet."""
    for party in case.parties:
        guards = case.program.spot(party.site).guards
        if any(guard.branch == "finally" for guard in guards):
            draft = handling.held_back(case.roll, party.ranks, party.event)
            if draft is not None:
                return draft
    return None


def _evaluation(case: Case) -> Draft | None:
    for party in reversed(case.parties):
        draft = lone.evaluation(case, party)
        if draft is not None:
            return draft
    return None


def _branches(case: Case) -> Draft | None:
    found = lone.exclusive(case)
    if found is not None:
        return lone.mismatch(case, *found)
    one, other = case.parties[0], case.parties[1]
    # One line that calls this operation here and that one there; a sharded model's own calls are no choice.
    if one.is_collective and other.is_collective and one.token != other.token and same_place(one.site, other.site):
        phase = case.phase_before(one)
        if phase is None or not same_place(phase.site, one.site):
            return lone.mismatch(case, one, other, None)
    return None


def _rank_guard(case: Case) -> Draft | None:
    found = lone.guarded_by_rank(case)
    if found is None:
        return None
    party, guard = found
    rest = case.rest(party.ranks)
    if party.event is not None and party.event.root is not None and rest == (party.event.root,):
        # All are in it but the one it comes from or goes to: that one is missing, not they too many.
        other = case.others(party)[0]
        return lone.missed(case, other, party, guard, Frame(guard.file, guard.line))
    return lone.collective(case, party, guard)


def skipped(case: Case) -> Draft | None:
    """Some ranks went from a forward into its backward, others elsewhere."""
    reference = next((party for party in case.parties if party.token[0] == "backward"), None)
    if reference is None or case.parting.first_index != case.parting.index:
        return None
    before = case.phase_before(reference)
    if before is None or before.kind != "forward":
        return None
    for party in case.others(reference):
        if party.is_collective and _belongs_to_step(case, party, reference):
            return lone.collective(case, party, _innermost_guard(case, party))
        return skips.backward_skipped(case, party, reference)
    return None


def _belongs_to_step(case: Case, party: Party, reference: Party) -> bool:
    """True when the party's call lies in the loop of the step, and no other rank was ever at it."""
    if case.seen(tuple(case.parting.lanes), party.site, before=True):
        return False
    loops = case.program.loops_around(reference.site)
    return bool(loops) and case.inside(loops[0], party.site)


def _innermost_guard(case: Case, party: Party) -> Guard | None:
    guards = case.program.spot(party.site).guards
    return guards[0] if guards else None


def _goes_on(case: Case) -> Draft | None:
    """Some ranks begin another step; the others are in a collective outside of it, or have left."""
    going = _going_on(case)
    if going is None:
        return None
    party = case.others(going)[0]
    if left(party):
        return leaving.judge(case, party, going)
    if not party.is_collective:
        return leaving.judge(case, party, going)
    if case.ran_out(party) is not None:
        return leaving.judge(case, party, going)
    if _in_loop_of(case, party, going):
        if case.seen(going.ranks, party.site, before=True):
            return _missed(case, going, party)
        return lone.collective(case, party, _innermost_guard(case, party), confidence=0.85)
    if len(going.ranks) <= len(party.ranks) and _can_be_missed(case, party, going):
        return _missed(case, going, party)
    return leaving.judge(case, party, going)


def _going_on(case: Case) -> Party | None:
    """The party in the training loop: in a forward or backward, or in a call that all ranks have made before."""
    for party in case.parties:
        if party.token[0] in _STEP:
            return party
    everyone = tuple(case.parting.lanes)
    known = [p for p in case.parties if p.is_collective and case.seen(everyone, p.site, before=True)]
    fresh = [p for p in case.parties if p not in known]
    return known[0] if known and fresh else None


def _in_loop_of(case: Case, party: Party, going: Party) -> bool:
    loops = case.program.loops_around(going.site)
    return bool(loops) and case.inside(loops[0], party.site)


def _can_be_missed(case: Case, party: Party, going: Party) -> bool:
    """True when a condition leads past the party's call and the ranks that went on do not run a longer loop."""
    if lone.way_past(case, party.site) is None:
        return False
    loops = case.program.loops_around(going.site)
    return not any(loop.by_rank for loop in loops[:1])


def _missed(case: Case, party: Party, reference: Party) -> Draft:
    way = lone.way_past(case, reference.site)
    guard, place = way if way is not None else (None, None)
    return lone.missed(case, party, reference, guard, place)


def _collectives(case: Case) -> Draft | None:
    """All are in collectives, and nothing tells that one of them goes on: who made a call that others lack?"""
    calls = [party for party in case.parties if party.is_collective]
    if len(calls) < 2 or len(calls) < len(case.parties):
        return None
    usual, odd = _usual_and_odd(case, calls[0], calls[1])
    if odd is not None and usual is not None:
        everyone = tuple(case.parting.lanes)
        if case.seen(everyone, odd.site, before=True):
            return _missed(case, odd, usual)
        if case.seen(everyone, usual.site, before=True):
            return lone.collective(case, odd, _innermost_guard(case, odd), confidence=0.85)
    return _first_time(case, calls[0], calls[1])


def _usual_and_odd(case: Case, one: Party, other: Party) -> tuple[Party | None, Party | None]:
    """The majority and the minority; of two equal sides, the one that does as always and the one that does not."""
    if len(one.ranks) != len(other.ranks):
        return one, other
    expected = case.expected()
    for party, partner in ((one, other), (other, one)):
        if same_place(party.site, expected) and not same_place(partner.site, expected):
            return party, partner
    return None, None


def _first_time(case: Case, one: Party, other: Party) -> Draft:
    """Two calls that nobody has made before: the source's order is all there is."""
    for party, partner in ((other, one), (one, other)):
        # Its own later call is the partner's: it made one more than they did.
        if case.seen(party.ranks, partner.site, after=True) and not case.seen(partner.ranks, party.site):
            return lone.collective(case, party, _innermost_guard(case, party), confidence=0.85)
    for party, partner in ((one, other), (other, one)):
        if _comes_before(case, party, partner) and lone.way_past(case, party.site) is not None:
            if len(partner.ranks) > len(party.ranks):
                return lone.collective(case, party, _innermost_guard(case, party), confidence=0.8)
            return _missed(case, partner, party)
    return lone.mismatch(case, one, other, None)


def _comes_before(case: Case, one: Party, other: Party) -> bool:
    """True when the first call stands earlier in the same function, or in one that is called earlier."""
    if one.site is None or other.site is None:
        return False
    if one.site.file == other.site.file and case.program.spot(one.site).function == (
        case.program.spot(other.site).function
    ):
        return one.site.line < other.site.line
    callers = case.program.callers(case.program.spot(one.site).function)
    return any(caller.file == other.site.file and caller.line < other.site.line for caller in callers)


def _nobody_came(case: Case) -> Draft | None:
    """Some ranks are in a collective, the others have left the program."""
    gone = next((party for party in case.parties if left(party)), None)
    waits = next((party for party in case.parties if party.is_collective), None)
    if gone is None or waits is None:
        return None
    if len(waits.ranks) < len(gone.ranks):
        return lone.collective(case, waits, _innermost_guard(case, waits), confidence=0.8)
    if lone.way_past(case, waits.site) is not None and not _exit_called(case, gone):
        return _missed(case, gone, waits)
    return None


def _exit_called(case: Case, party: Party) -> bool:
    notes = [case.roll.standings[rank].process.exit_note for rank in party.ranks]
    return any(note is not None and note.kind == "exit" for note in notes)
