"""Whose own end was the first: uncaught exceptions, signals and error exits, echoes left aside."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rankcall.diagnose import ports, words
from rankcall.diagnose.drafts import Draft
from rankcall.diagnose.exceptions import pitfall_of, text_of
from rankcall.diagnose.frames import code_of, innermost_user, is_user_file
from rankcall.diagnose.log_text import fatal_stack, worker_frames
from rankcall.diagnose.rings import last_exception_event
from rankcall.diagnose.roll import Roll, Standing
from rankcall.findings import Evidence, Rival
from rankcall.snapshot import Event, ExceptionNote, Frame

# Ranks that fail alike within this time have the same fault; an echo would not fail alike.
TOGETHER_S = 0.5
_BUS, _KILL, _ABORT, _TERM, _INT, _HUP = 7, 9, 6, 15, 2, 1
_ASKED_TO_STOP = (_TERM, _INT)
_MEMORY_LINES = ("out of memory", "oom-kill", "oom_kill", "killed process", "memory cgroup")


def judge(roll: Roll) -> Draft | None:
    """The first rank's own failure, or None: nobody failed by itself."""
    failed = [s for s in roll.standings.values() if s.ending in ("exception", "signal", "exit")]
    asked = [s for s in failed if s.ending == "signal" and _signal(s) in _ASKED_TO_STOP]
    failed = [s for s in failed if s not in asked]
    if not failed:
        return _asked_to_end(roll, asked)
    failed.sort(key=lambda s: (s.ended_at if s.ended_at is not None else float("inf"), s.rank))
    first = failed[0]
    if first.ending == "exception" and first.exception is not None:
        return _exception(roll, first, first.exception, failed)
    if first.ending == "signal":
        return _by_signal(roll, first, failed)
    return _by_exit(roll, first, failed)


def _asked_to_end(roll: Roll, asked: list[Standing]) -> Draft | None:
    """Some ranks, not all, were ended by a SIGTERM or SIGINT that the launcher did not send: somebody else did. What
    the others say came after; nobody's own failure is there to explain it."""
    if not asked or len(asked) == len(roll.standings):
        return None
    asked.sort(key=lambda s: (s.ended_at if s.ended_at is not None else float("inf"), s.rank))
    first = asked[0]
    return dataclasses.replace(_by_signal(roll, first, [first]), confidence=0.8)


def _signal(standing: Standing) -> int | None:
    return standing.process.exit.signal if standing.process.exit is not None else None


def alike(first: Standing, failed: Sequence[Standing]) -> tuple[int, ...]:
    """The ranks that failed in the same way at the same place and time as the first."""
    if first.exception is None:
        return (first.rank,)
    found = [first.rank]
    for other in failed:
        if other is first or other.exception is None or other.exception.type != first.exception.type:
            continue
        here = first.exception.frames[-1:] == other.exception.frames[-1:]
        if here and _gap(first, other) <= TOGETHER_S:
            found.append(other.rank)
    return tuple(sorted(found))


def _gap(one: Standing, other: Standing) -> float:
    if one.ended_at is None or other.ended_at is None:
        return 0.0
    return abs(one.ended_at - other.ended_at)


def others(roll: Roll, culprits: Sequence[int]) -> tuple[int, ...]:
    """The ranks that stood in a call when the failure reached them, or still do."""
    return tuple(rank for rank, s in roll.standings.items() if rank not in culprits and s.wait is not None)


def _exception(roll: Roll, first: Standing, note: ExceptionNote, failed: Sequence[Standing]) -> Draft:
    pitfall, confidence = pitfall_of(note)
    culprits = alike(first, failed)
    place = exception_place(roll, note)
    if pitfall == "loader-worker-died" and "worker process" not in note.message:
        # The news of a dead worker interrupts the main process anywhere: the loader's own line says more.
        place = _loader_line(first) or place
    who = words.ranks_text(culprits) if len(culprits) > 1 else roll.place_name(first.rank)
    everyone = len(culprits) == len(roll.standings) > 1
    subject = "every rank" if everyone else who
    raised = words.shorten(said(note), 200).rstrip(".")
    names = f" The parameters: {', '.join(note.parameters[:20])}." if note.parameters else ""
    sentence = f"{subject} raised {raised}{words.at(place)}"
    if not everyone and len(roll.standings) > len(culprits):
        sentence += ", the first to fail; what the others say came after"
    elif everyone:
        sentence += ": the same fault everywhere"
    holder = ports.holder_of(roll, ports.port_in(note.message)) if pitfall == "port-in-use" else None
    if holder is not None and holder.pid in {s.process.pid for s in roll.standings.values()}:
        holder = None  # it is this job's own
    if holder is not None:
        sentence += f". The port is held by {ports.holder_text(holder)}"
    code = code_of(place, roll.snapshot.sources)
    own = words.verb(culprits, "its own", "their own")
    why = f"{words.capital(who)} ended by an exception of {own}{words.at(place)}"
    why += f" (`{code}`)." if code else "."
    why += names
    echoes = [s for s in roll.standings.values() if s.ending in ("echo", "abort")]
    if echoes:
        ranks = [s.rank for s in echoes]
        echoed = words.verb(ranks, "error of {} is an echo", "errors of {} are echoes")
        why += f" The {echoed.format(words.ranks_text(ranks))}: a connection to a rank that had gone."
    rivals: tuple[Rival, ...] = ()
    if confidence < 0.9:
        rivals = (Rival("program-error", 0.15, "Read the traceback: the exception may have another cause."),)
    evidence = [Evidence("exit note", raised, first.rank, first.process.host, first.ended_at)]
    evidence += [
        Evidence(f"{frame.file}:{frame.line}", f"in {frame.function}", first.rank, first.process.host)
        for frame in note.frames[-6:]
        if is_user_file(frame.file, roll.snapshot.sources)
    ]
    return Draft(
        pitfall=pitfall,
        culprits=culprits,
        confidence=confidence,
        proven=True,
        sentence=sentence,
        why=why,
        where=place,
        waiting=others(roll, culprits),
        fix=_exception_fixes(pitfall, note, place) + (ports.fixes(holder) if holder is not None else ()),
        rivals=rivals,
        evidence=tuple(evidence),
    )


def said(note: ExceptionNote) -> str:
    """The exception in one line; of a loader worker's, the line that says what happened in the worker."""
    if "DataLoader worker process" in note.message:
        lines = [line.strip() for line in note.message.splitlines() if line.strip()]
        return f"{lines[-1]} (in a DataLoader worker)"
    return text_of(note)


def _loader_line(standing: Standing) -> Frame | None:
    """Where the rank draws its batches."""
    events = (event for event in reversed(standing.process.ring) if event.kind == "batch")
    return next((event.site for event in events if event.site is not None), None)


def _exception_fixes(pitfall: str, note: ExceptionNote, place: Frame | None) -> tuple[str, ...]:
    if pitfall == "unused-parameters" and note.parameters:
        names = ", ".join(note.parameters[:8])
        return (f"Use {names} in the loss, freeze them (requires_grad_(False)), or leave them out of the model.",)
    if pitfall == "program-error" and place is not None:
        return (f"Mend {words.place(place)}: {words.shorten(text_of(note), 160).rstrip('.')}.",)
    return ()


def exception_place(roll: Roll, note: ExceptionNote) -> Frame | None:
    """The user's line that raised: a loader worker's own line where the message carries its traceback."""
    sources = roll.snapshot.sources
    if "DataLoader worker process" in note.message:
        found = innermost_user(reversed(worker_frames(note.message)), sources)
        if found is not None:
            return found
    return innermost_user(reversed(note.frames), sources)


def _by_signal(roll: Roll, first: Standing, failed: Sequence[Standing]) -> Draft:
    number = _signal(first) or 0
    same = [s.rank for s in failed if _signal(s) == number and _gap(first, s) <= TOGETHER_S]
    culprits = tuple(sorted(same))
    name = words.signal_name(number)
    end = first.process.exit
    lines = _memory_lines(roll, first)
    pitfall, confidence, rivals = "crashed-by-signal", 0.95, ()  # type: tuple[str, float, tuple[Rival, ...]]
    reason = f"The process was ended by {name}; no Python code of it could say why."
    if number == _KILL and ((end is not None and end.oom_killed) or lines):
        pitfall, confidence = "host-out-of-memory", 0.95
        reason = "The kernel ended the process because the machine or its memory group ran out of memory."
    elif number == _KILL:
        confidence = 0.8
        reason = "SIGKILL comes from outside: from a person, a scheduler, or the kernel when memory runs out."
        rivals = (
            Rival(
                "host-out-of-memory",
                0.4,
                "`dmesg -T | grep -i 'killed process'`, or the cgroup's memory.events (oom_kill), names the process.",
            ),
        )
    elif number == _BUS and _shm_evidence(first):
        pitfall, confidence = "shm-too-small", 0.9
        reason = "SIGBUS with shared memory in its last lines: a mapped page could not be backed."
    elif number == _HUP:
        pitfall, confidence = "terminal-closed", 0.85
        reason = "SIGHUP is sent when the terminal that started the job goes away."
    place = _last_place(roll, first)
    who = words.ranks_text(culprits) if len(culprits) > 1 else roll.place_name(first.rank)
    sentence = f"{who} {words.verb(culprits, 'was', 'were')} ended by {name}"
    if place is not None:
        sentence += f", last seen{words.at(place)}"
    if len(roll.standings) > len(culprits):
        sentence += "; what the others say came after"
    evidence = [Evidence("exit", f"ended by {name}", first.rank, first.process.host, first.ended_at)]
    evidence += [Evidence("kernel or cgroup log", line, first.rank, first.process.host) for line in lines[:3]]
    return Draft(
        pitfall=pitfall,
        culprits=culprits,
        confidence=confidence,
        proven=pitfall == "crashed-by-signal" or bool(lines),
        sentence=sentence,
        why=reason,
        where=place,
        waiting=others(roll, culprits),
        rivals=rivals,
        evidence=tuple(evidence),
    )


def at_teardown(roll: Roll) -> Draft | None:
    """Ranks that a signal ended after their program had come to its end; asked when nothing else is wrong."""
    ended = [s for s in roll.standings.values() if s.ending == "left" and _signal(s) is not None]
    if not ended:
        return None
    ranks = tuple(s.rank for s in ended)
    name = words.signal_name(_signal(ended[0]) or 0)
    who = roll.place_name(ranks[0]) if len(ranks) == 1 else words.ranks_text(ranks)
    return Draft(
        pitfall="crashed-by-signal",
        culprits=ranks,
        confidence=0.5,
        proven=True,
        sentence=f"{who} {words.verb(ranks, 'was', 'were')} ended by {name} after the program had come to its end: the "
        "work was done, the clean-up failed",
        why="The note of a regular end was written before the signal came. A library's threads or destructors fail "
        "now and then while the interpreter shuts down.",
        fix=("Call dist.destroy_process_group() as the last thing of the program, on every rank, and end threads of "
             "your own before that.",),
        rivals=(Rival("program-error", 0.1, "Is any output of this rank missing?"),),
        evidence=tuple(
            Evidence("exit", f"ended by {name} after its note of a regular end", s.rank, s.process.host, s.ended_at)
            for s in ended[:8]
        ),
    )  # fmt: skip


def _memory_lines(roll: Roll, standing: Standing) -> list[str]:
    """Kernel or cgroup lines that speak of this process, or of a kill that no other process explains."""
    pid = str(standing.process.pid)
    lines = [line for line in roll.snapshot.last_lines if any(word in line.lower() for word in _MEMORY_LINES)]
    own = [line for line in lines if pid in line]
    return own or [line for line in lines if "killed process" not in line.lower()]


def _shm_evidence(standing: Standing) -> bool:
    return any("shm" in line.lower() or "shared memory" in line.lower() for line in standing.process.log_tail)


def _last_place(roll: Roll, standing: Standing) -> Frame | None:
    """Where a process that could write no note was: faulthandler's output, its stack, its last event."""
    sources = roll.snapshot.sources
    for stack in (fatal_stack(standing.process.log_tail), standing.thread.stack):
        found = innermost_user(stack, sources)
        if found is not None:
            return found
    wait = standing.thread.wait
    if wait is not None and wait.site is not None:
        return wait.site
    if standing.thread.phase_site is not None:
        return standing.thread.phase_site
    return next((event.site for event in reversed(standing.process.ring) if event.site is not None), None)


def _is_user(roll: Roll, frame: Frame | None) -> bool:
    return frame is not None and is_user_file(frame.file, roll.snapshot.sources)


def _unnoted_exception(roll: Roll, first: Standing, raised: Event) -> Draft:
    """Somebody caught the exception and left with an error code (torch.multiprocessing does): its type is known."""
    in_init = first.process.initialized == "entered"
    pitfall, confidence = ("port-in-use", 0.6) if in_init and "Network" in raised.op else ("program-error", 0.8)
    return Draft(
        pitfall=pitfall,
        culprits=(first.rank,),
        confidence=confidence,
        proven=True,
        sentence=f"{roll.place_name(first.rank)} raised {raised.op or 'an exception'}{words.at(raised.site)} and left "
        "with an error code",
        why="The exception passed this line; its text was not recorded. The rank's log holds the traceback.",
        where=raised.site,
        waiting=others(roll, (first.rank,)),
        rivals=(Rival("master-unreachable", 0.2, "The traceback in the rank's log says which address failed."),)
        if pitfall == "port-in-use"
        else (),
        evidence=(Evidence("record", f"{raised.op} passed here", first.rank, first.process.host, raised.time),),
    )


def _by_exit(roll: Roll, first: Standing, failed: Sequence[Standing]) -> Draft:
    note, end = first.process.exit_note, first.process.exit
    raised = last_exception_event(first)
    if raised is not None and (note is None or not _is_user(roll, note.site)):
        return _unnoted_exception(roll, first, raised)
    code = end.code if end is not None and end.code is not None else note.code if note is not None else None
    site = note.site if note is not None else None
    same = [
        s.rank
        for s in failed
        if s.ending == "exit" and s.process.exit_note is not None and s.process.exit_note.site == site
        and _gap(first, s) <= TOGETHER_S
    ]  # fmt: skip
    culprits = tuple(sorted({first.rank, *same}))
    who = words.ranks_text(culprits) if len(culprits) > 1 else roll.place_name(first.rank)
    last_line = next((line for line in reversed(first.process.log_tail) if line.strip()), "")
    pitfall = "program-error"
    if "--local" in last_line and "unrecognized arguments" in last_line:
        pitfall = "local-rank-argument"
    said = f" Its last line was: {words.shorten(last_line, 200)}" if last_line else ""
    return Draft(
        pitfall=pitfall,
        culprits=culprits,
        confidence=0.85 if site is not None else 0.7,
        proven=True,
        sentence=f"{who} ended {words.verb(culprits, 'itself', 'themselves')} with exit code {code}{words.at(site)}",
        why=f"The program left with an error code of its own, before any other rank failed.{said}",
        where=site,
        waiting=others(roll, culprits),
        rivals=(Rival("rank-left-early", 0.1, "An exit code other than 0 says that the program meant to fail."),),
        evidence=(
            Evidence(
                "exit note" if note else "exit", f"exit code {code}", first.rank, first.process.host, first.ended_at
            ),
        ),
    )
