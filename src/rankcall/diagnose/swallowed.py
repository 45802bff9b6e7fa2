"""An exception that broke off a recorded call on one rank and did not end it: the call counts, its work is missing."""

from __future__ import annotations

from rankcall.diagnose import words
from rankcall.diagnose.drafts import Draft
from rankcall.diagnose.echoes import nature
from rankcall.diagnose.frames import code_of
from rankcall.diagnose.graph import Graph
from rankcall.diagnose.roll import Roll, Standing
from rankcall.findings import Evidence, Rival
from rankcall.snapshot import Event

_WORK = ("forward", "backward", "step", "collective")


def _broken_call(standing: Standing) -> Event | None:
    """The last exception after which the rank went on to work."""
    worked = False
    for event in reversed(standing.process.ring):
        if event.kind == "exception" and worked:
            return event
        worked = worked or event.kind in _WORK
    return None


def swallowed(roll: Roll, graph: Graph) -> Draft | None:
    """A verdict if some ranks swallowed an exception of their own in a step, and the others did not."""
    broken = {rank: event for rank, s in roll.standings.items() if (event := _broken_call(s)) is not None}
    if not broken or len(broken) * 2 > len(roll.standings):
        return None
    if any(nature(note) != "own" for rank in broken for note in roll.standings[rank].process.handled):
        return None
    ranks = tuple(sorted(broken))
    first, event = roll.standings[ranks[0]], broken[ranks[0]]
    handlers = roll.program.handlers_around(event.site)
    place = handlers[0] if handlers else event.site
    note = first.process.handled[-1] if first.process.handled else None
    raised = words.shorten(f"{note.type}: {note.message}", 160) if note is not None else event.op or "an exception"
    step = f" in step {event.step}" if event.step is not None else ""
    code = code_of(place, roll.snapshot.sources)
    who = roll.place_name(ranks[0]) if len(ranks) == 1 else words.ranks_text(ranks)
    wait = first.wait
    now = f", and now waits in {words.operation(wait)}{words.at(wait.site)}" if wait is not None else ""
    return Draft(
        pitfall="data-dependent-skip",
        culprits=ranks,
        confidence=0.85,
        proven=True,
        sentence=f"{who} swallowed {raised}{words.at(event.site)}{step} and went on{words.at(place)}{now}",
        why="The call was broken off: its collectives are missing, and from there on every step met the wrong partner."
        + (f" `{code}` catches the exception." if code and handlers else ""),
        where=place,
        waiting=tuple(rank for rank in graph.waiting if rank not in broken),
        fix=(f"Let the rank fail{words.at(place)}, or agree with the others (all-reduce a flag) before going on.",),
        rivals=(Rival("collective-mismatch", 0.15, "Do the calls still differ when the exception is gone?"),),
        evidence=(
            Evidence("record", f"{raised} passed{words.at(event.site)}", first.rank, first.process.host, event.time),
        ),
        involved=tuple(sorted({*ranks, *graph.waiting})),
    )
