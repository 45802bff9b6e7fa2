"""Ranks that left their training loop before the others: out of data, on a condition, or out of the program."""

from __future__ import annotations

import re

from rankcall.diagnose import parting, words
from rankcall.diagnose.case import Case, Party
from rankcall.diagnose.drafts import Draft
from rankcall.diagnose.frames import code_of, same_place
from rankcall.diagnose.rings import excess_batches, forward_excess, skipped_batches, training_site
from rankcall.diagnose.skips import backward_missing, batch_skipped, before_work
from rankcall.diagnose.source import Jump, Loop
from rankcall.findings import Rival
from rankcall.snapshot import Frame


def judge(case: Case, party: Party, reference: Party) -> Draft:
    """`party` had gone past the loop (or the program) in which `reference` takes another step."""
    called_exit = _exit_site(case, party)
    if called_exit is not None:
        return _left_program(case, party, called_exit)
    work = _work_site(case, party, reference)
    if _skips_backwards(case, party):
        return backward_missing(case, party)
    if _skips_batches(case, party):
        return batch_skipped(case, party, work)
    loops = _loops(case, work, party)
    loop = loops[0] if loops else None
    ended = case.ran_out(party)
    if ended is not None:
        # A generator of the user's around the loader is not the loop that ran out.
        outside = ended.site is None or not any(one.holds(ended.site) for one in loops)
        place = _loop_frame(loop) if outside and loop is not None else ended.site
        return _uneven(case, party, place, "{its} data loader had no more batches{at}", 0.93)
    return _by_source(case, party, work, loops)


def _exit_site(case: Case, party: Party) -> Frame | None:
    for rank in party.ranks:
        standing = case.roll.standings[rank]
        note = standing.process.exit_note
        if standing.ending == "left" and note is not None and note.kind == "exit" and note.site is not None:
            return note.site
    return None


def _work_site(case: Case, party: Party, reference: Party) -> Frame | None:
    """A line of the loop's work: the reference's next step, else the party's last training line."""
    if reference.token[0] in ("forward", "backward", "collective") and reference.site is not None:
        return reference.site
    return training_site(case.roll.standings[party.ranks[0]])


def _loops(case: Case, work: Frame | None, party: Party) -> list[Loop]:
    """The loops of the work that the party is not in any more, innermost first."""
    return [
        loop
        for loop in case.program.loops_around(work)
        if not (party.site is not None and case.inside(loop, party.site)) and not _inner_of_one_step(case, loop, work)
    ]


def _inner_of_one_step(case: Case, loop: Loop, work: Frame | None) -> bool:
    """True for a loop over parameters or micro-batches within a step: the step itself is not inside it."""
    outer = [other for other in case.program.loops_around(work) if other is not loop]
    return bool(outer) and "parameters" in loop.text


def _loop_frame(loop: Loop | None) -> Frame | None:
    return Frame(loop.file, loop.line) if loop is not None else None


def _skips_backwards(case: Case, party: Party) -> bool:
    """More forwards than backwards, where the ranks that went on have one for one: it parted before the rings begin."""
    excess = {rank: forward_excess(case.roll.standings[rank]) for rank in case.parting.lanes}
    return _stands_out(case, party, excess)


def _skips_batches(case: Case, party: Party) -> bool:
    """Batches drawn and not worked on, unlike the ranks that went on: in its ring, or else by its counters."""
    skipped = {rank: bool(skipped_batches(case.roll.standings[rank])) for rank in case.parting.lanes}
    rest = case.rest(party.ranks)
    if all(skipped[rank] for rank in party.ranks) and not any(skipped[rank] for rank in rest):
        return True
    if all(lane.whole for lane in case.parting.lanes.values()):
        return False
    return _stands_out(case, party, {rank: excess_batches(case.roll.standings[rank]) for rank in skipped})


def _stands_out(case: Case, party: Party, excess: dict[int, int]) -> bool:
    """A larger excess than all others have, where theirs is none or the one in hand: a loop of one for one."""
    usual = [excess[rank] for rank in case.rest(party.ranks)]
    if not usual or min(usual) < 0 or max(usual) > 1:
        return False
    return all(excess[rank] > max(usual) for rank in party.ranks)


def _by_source(case: Case, party: Party, work: Frame | None, loops: list[Loop]) -> Draft:
    """No record tells how the loop ended: the source does, as far as it can."""
    # A loop of a fixed length cannot have ended early by itself.
    open_loops = [loop for loop in loops if not loop.fixed]
    loop = open_loops[0] if open_loops else loops[0] if loops else None
    jumps = [jump for loop in loops for jump in _ways_out(case, loop)]
    used_loader = any(case.roll.standings[rank].process.counters.batches for rank in party.ranks)
    skips = before_work(case, work, party.ranks)
    if loop is not None and loop.by_rank and not used_loader:
        return _uneven(
            case,
            party,
            _loop_frame(loop),
            f"{{its}} loop{{at}} runs over `{_braced(loop.text)}`, made from the rank",
            0.85,
        )
    gone = all(case.roll.standings[rank].ending == "left" for rank in party.ranks)
    if gone and not case.steps(party.ranks) and (before := _ways_past(case, work, loops)):
        return _left_program(case, party, _line_of(_likeliest(before)))
    if jumps and gone and all(jump.kind in ("return", "exit") for jump in jumps):
        return _left_program(case, party, _line_of(_likeliest(jumps)))
    # A limit on the number of steps is the same everywhere, most of the time.
    telling = [
        jump
        for jump in jumps
        if not _counts_steps(jump) and not case.program.ran_out(jump) and not case.program.agreed(jump)
    ]
    if telling:
        return _stopped(case, party, _likeliest(telling), sure=used_loader)
    if skips and not used_loader:
        return batch_skipped(case, party, work)
    if any(case.program.ran_out(jump) for jump in jumps):
        place = _next_call(case, loops) or _loop_frame(loop)
        return _uneven(case, party, place, "{its} data had come to an end{at}", 0.88)
    if jumps and used_loader:
        return _stopped(case, party, _likeliest(jumps), sure=False)
    handlers = case.program.handlers_around(work)
    if loops and not open_loops and handlers:
        return _swallowed(case, party, handlers[0], gone=gone)
    exits = case.program.exits() if gone and not open_loops else ()
    if exits:
        return _left_program(case, party, Frame(exits[0].file, exits[0].line))
    confidence = 0.85 if loop is not None else 0.65
    return _uneven(
        case, party, _loop_frame(loop) or party.site, "{it} came to the end of {its} loop first{at}", confidence
    )


def _ways_out(case: Case, loop: Loop) -> list[Jump]:
    """The jumps that leave this loop, not one inside it."""
    found = []
    for jump in case.program.jumps(loop.file, loop.line + 1, loop.end):
        if jump.kind in ("return", "exit"):
            found.append(jump)
        elif jump.kind == "break":
            inner = case.program.spot(Frame(loop.file, jump.line)).loops
            if inner and inner[0].line == loop.line:
                found.append(jump)
    return [jump for jump in found if jump.guard is not None or loop.text == "True"]


def _ways_past(case: Case, work: Frame | None, loops: list[Loop]) -> list[Jump]:
    """The conditional ways out of the function before its loop: a rank without a step may never have begun it."""
    if work is None or not loops:
        return []
    loop = loops[-1]
    first = case.program.spot(Frame(loop.file, loop.line)).first
    jumps = case.program.jumps(loop.file, first + 1, loop.line - 1)
    return [jump for jump in jumps if jump.kind in ("return", "exit") and jump.guard and jump.guard.line > first]


def _line_of(jump: Jump) -> Frame:
    return Frame(jump.file, jump.line)


def _likeliest(jumps: list[Jump]) -> Jump:
    """A jump on the rank before any other."""
    by_rank = [jump for jump in jumps if jump.guard is not None and jump.guard.by_rank]
    return (by_rank or jumps)[0]


def _next_call(case: Case, loops: list[Loop]) -> Frame | None:
    calls = (call for call in case.program.callers("next") if any(loop.holds(call) for loop in loops))
    return next(calls, None)


def _counts_steps(jump: Jump) -> bool:
    guard = jump.guard
    return (
        guard is not None
        and not guard.by_rank
        and re.search(r"(max_|num_|n_)?(steps?|iters?|epochs?)\b", guard.text) is not None
    )


def _braced(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _uneven(case: Case, party: Party, place: Frame | None, reason: str, confidence: float) -> Draft:
    """`reason` has `{it}`, `{its}` and `{at}` for the ranks and the place."""
    ranks = _all_short(case, party)
    said = {"it": words.verb(ranks, "it", "they"), "its": words.verb(ranks, "its", "their")}
    rivals = (
        Rival("data-dependent-skip", 0.2, "Print the number of batches on every rank: equal numbers point to a skip."),
    )
    return Draft(
        pitfall="uneven-steps",
        culprits=ranks,
        confidence=confidence,
        proven=True,
        sentence=f"{case.who(ranks)} {case.short_of_steps(ranks)}: {reason.format(at=words.at(place), **said)}"
        f"{case.ending(party.ranks)}",
        why=f"Each step needs every rank. {words.capital(case.who(ranks))} had nothing left to do a step with: "
        f"{reason.format(at='', **said)}.",
        where=place,
        waiting=case.rest(ranks),
        rivals=rivals,
        evidence=case.evidence(ranks),
        involved=(*ranks, *case.rest(ranks)),
    )


def _all_short(case: Case, party: Party) -> tuple[int, ...]:
    """The party, and the ranks that went the same way out a little later: they too have fewer steps than the rest."""
    short = set(party.ranks)
    for _ in range(len(case.parting.lanes)):
        rest = case.rest(tuple(short))
        found = parting.find(case.roll, case.parting.group, rest)
        if found is None:
            break
        later = Case(case.roll, case.graph, found)
        same = [one for one in later.parties if one.token == party.token and same_way(one.site, party.site)]
        if len(same) != 1 or len(later.parties) < 2:
            break
        short.update(same[0].ranks)
    return tuple(sorted(short))


def same_way(one: Frame | None, other: Frame | None) -> bool:
    """The same line, or out of the program both."""
    return same_place(one, other) or (one is None and other is None)


def _stopped(case: Case, party: Party, jump: Jump, *, sure: bool) -> Draft:
    ranks = party.ranks
    place = _line_of(jump)
    code = code_of(jump.place, case.roll.snapshot.sources)
    return Draft(
        pitfall="data-dependent-skip",
        culprits=ranks,
        confidence=0.88 if sure else 0.75,
        proven=True,
        sentence=f"{case.who(ranks)} {case.short_of_steps(ranks)}: {words.verb(ranks, 'it', 'they')} left the loop"
        f"{words.at(place)}{case.ending(party.ranks)}",
        why=f"The loop can be left by `{jump.kind}` under `{code}`; the others did not leave it there.",
        where=place,
        waiting=case.rest(ranks),
        fix=(
            f"At {words.place(jump.place)} let all ranks decide together: all-reduce the condition (ReduceOp.MAX), "
            "then leave on every rank or on none.",
        ),
        rivals=(Rival("uneven-steps", 0.3, "Print the number of batches on every rank before the loop."),),
        evidence=case.evidence(ranks),
        involved=(*ranks, *case.rest(ranks)),
    )


def _swallowed(case: Case, party: Party, place: Frame, *, gone: bool) -> Draft:
    """A loop of fixed length was left early, and an error on the way out would have been swallowed."""
    ranks = party.ranks
    code = code_of(place, case.roll.snapshot.sources)
    return Draft(
        pitfall="rank-left-early" if gone else "data-dependent-skip",
        culprits=ranks,
        confidence=0.7,
        proven=True,
        sentence=f"{case.who(ranks)} {case.short_of_steps(ranks)}: perhaps {words.verb(ranks, 'it', 'they')} swallowed "
        f"an error{words.at(place)}{case.ending(ranks)}",
        why=f"The loop has a fixed length and no way out but an exception, and `{code}` goes on in silence.",
        where=place,
        waiting=case.rest(ranks),
        fix=(f"Log what is swallowed{words.at(place)}, and let the rank fail instead of going on alone.",),
        rivals=(Rival("uneven-steps", 0.2, "Print the number of steps on every rank."),),
        evidence=case.evidence(ranks),
        involved=(*ranks, *case.rest(ranks)),
    )


def _left_program(case: Case, party: Party, place: Frame) -> Draft:
    ranks = party.ranks
    rest = case.rest(ranks)
    return Draft(
        pitfall="rank-left-early",
        culprits=ranks,
        confidence=0.9,
        proven=True,
        sentence=f"{case.who(ranks)} left the program with exit code 0{words.at(place)} after "
        f"{words.count(case.steps(ranks), 'step')}, while {words.ranks_text(rest)} {case.stands(rest)}",
        why="It ended as if all were done, and said nothing to its group; the others still needed it.",
        where=place,
        waiting=rest,
        rivals=(Rival("uneven-steps", 0.15, "Did it leave because its data had run out?"),),
        evidence=case.evidence(ranks),
        involved=(*ranks, *rest),
    )
