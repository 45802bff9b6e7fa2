"""An exception that a rank still deals with: it stands in its `except` or `finally` branch and has not ended yet."""

from __future__ import annotations

from collections.abc import Sequence

from rankcall.diagnose import words
from rankcall.diagnose.crash import exception_place, others, said
from rankcall.diagnose.drafts import Draft
from rankcall.diagnose.echoes import nature
from rankcall.diagnose.exceptions import pitfall_of
from rankcall.diagnose.frames import user_frames
from rankcall.diagnose.log_text import exception_in_log
from rankcall.diagnose.roll import Roll, Standing
from rankcall.findings import Evidence, Rival
from rankcall.snapshot import Event, ExceptionNote, Frame


def held_back(roll: Roll, ranks: Sequence[int], event: Event | None) -> Draft | None:
    """The exception that a rank was carrying when it made its last call, where that call stands in a `finally`."""
    standing = roll.standings[ranks[0]]
    if not standing.process.handled or event is None:
        return None
    note = standing.process.handled[-1]
    if nature(note) != "own":
        return None
    pitfall, confidence = pitfall_of(note)
    place = exception_place(roll, note)
    waiting = tuple(rank for rank in others(roll, ranks))
    raised = words.shorten(said(note), 200).rstrip(".")
    return Draft(
        pitfall=pitfall,
        culprits=tuple(ranks),
        confidence=min(confidence, 0.88),
        proven=True,
        sentence=f"{roll.place_name(ranks[0])} raised {raised}{words.at(place)}, and its `finally` calls "
        f"{words.operation(event)}{words.at(event.site)} before the exception is shown",
        why=f"The others went on with the step and do not come to {words.operation(event)}{words.at(event.site)}.",
        where=place,
        waiting=waiting,
        fix=(f"Make no collective call in a `finally`{words.at(event.site)}: after an error the others do not come.",),
        rivals=(Rival("lone-collective", 0.3, "Without the exception, would all ranks make that call?"),),
        evidence=(Evidence("record", raised, standing.rank, standing.process.host, note.time),),
        involved=(*ranks, *waiting),
    )


def taking_leave(roll: Roll) -> Draft | None:
    """A rank that has left its group and is still in the handler of its own exception: the others' errors are echoes
    of that, though they may end before it."""
    for standing in roll.standings.values():
        last = standing.process.ring[-1] if standing.process.ring else None
        if not standing.present or last is None or last.kind != "destroy":
            continue
        found = _in_handler(roll, standing)
        if found is not None:
            return _draft(roll, standing, *found)
    return None


def _in_handler(roll: Roll, standing: Standing) -> tuple[ExceptionNote, Frame] | None:
    """The rank's own exception and the line of the handler that it is in."""
    notes = list(standing.process.handled[-1:])
    logged = exception_in_log(standing.process.log_tail)
    notes += [logged] if logged is not None else []
    for frame in user_frames(standing.thread.stack, roll.snapshot.sources):
        spot = roll.program.spot(frame)
        handler = next((guard for guard in spot.guards if guard.branch == "except"), None)
        if handler is None:
            continue
        for note in notes:
            # What the handler caught came through a line of the same function, above it.
            tried = any(one.file == frame.file and spot.first < one.line < handler.line for one in note.frames)
            if tried and nature(note) == "own":
                return note, frame
    return None


def _draft(roll: Roll, standing: Standing, note: ExceptionNote, at: Frame) -> Draft:
    pitfall, confidence = pitfall_of(note)
    rank = standing.rank
    place = exception_place(roll, note)
    raised = words.shorten(said(note), 200).rstrip(".")
    return Draft(
        pitfall=pitfall,
        culprits=(rank,),
        confidence=min(confidence, 0.9),
        proven=True,
        sentence=f"{roll.place_name(rank)} raised {raised}{words.at(place)}, left its group, and is still in its "
        f"`except` branch{words.at(at)}; what the others say came after",
        why="It has closed its connections, and so the others lost theirs: their errors are echoes, though they ended "
        "first.",
        where=place,
        waiting=others(roll, (rank,)),
        rivals=(Rival("process-stuck", 0.1, "Does it end by itself a little later?"),),
        evidence=(
            Evidence("log", raised, rank, standing.process.host, note.time),
            Evidence("stack", f"in the `except` branch{words.at(at)}", rank, standing.process.host),
        ),
    )
