"""Why a rank that others wait for is not there: what a live process outside any wait is busy or stuck with."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rankcall.diagnose import words
from rankcall.diagnose.doing import action, state_words
from rankcall.diagnose.drafts import Draft
from rankcall.diagnose.frames import code_of, innermost_user
from rankcall.diagnose.rings import last_time, steps_of
from rankcall.diagnose.roll import Roll, Standing
from rankcall.findings import Evidence, Rival
from rankcall.snapshot import Child, Frame

FROZEN_AFTER_S = 2.0
SPINNING_BUSY = 0.8
WORKING_BUSY = 0.1  # on a crowded machine an honest computation may get no more than this
_COMPILING = re.compile(
    r"/torch/(_dynamo|_inductor|_functorch/_aot_autograd|fx/experimental)/|/triton/(compiler|runtime)"
)
_WORKER_IDLE = re.compile(r"/torch/utils/data/_utils/worker\.py$|/multiprocessing/")
# A save that sleeps here is not slow: nobody reads, or nobody lets go.
_BLOCKED_SAVE = re.compile(r"FIFO|pipe|lock|opening a file")
_SLOW_STORAGE = re.compile(r"\b(nfs|lustre|fuse|rpc_wait|ceph|cifs|gpfs|beegfs)", re.IGNORECASE)


def frozen(roll: Roll, rank: int) -> bool:
    """Stopped by a signal or a debugger, for long enough to say so."""
    process = roll.standings[rank].process
    if process.state not in ("stopped", "traced"):
        return False
    return roll.standings[rank].thread.stable_for >= FROZEN_AFTER_S or _quiet_for(roll, rank) >= FROZEN_AFTER_S


def moves(roll: Roll, rank: int) -> bool:
    """True when its record changed a moment ago."""
    standing = roll.standings[rank]
    if standing.settled:
        return False
    return standing.process.last_change is not None and _quiet_for(roll, rank) < FROZEN_AFTER_S


def busy_of(standing: Standing) -> float | None:
    """The share of a core it used, of its thread or else of the process."""
    return standing.thread.busy if standing.thread.busy is not None else standing.process.busy


def works(standing: Standing) -> bool:
    """True when it computes: nobody waits for it, so that a long computation is nobody's business."""
    busy = busy_of(standing)
    return busy is not None and busy >= WORKING_BUSY


def imports(standing: Standing) -> bool:
    """True while it imports modules."""
    return any(frame.file.startswith("<frozen importlib") for frame in standing.thread.stack[:12])


def _quiet_for(roll: Roll, rank: int) -> float:
    process = roll.standings[rank].process
    if process.last_change is None:
        return 0.0
    return roll.snapshot.taken_at - (process.last_change - process.clock_offset)


def judge(roll: Roll, roots: Sequence[int], waiting: Sequence[int]) -> Draft:
    """Name what holds up the first of these live roots, and every other root held up by the same."""
    drafts = {rank: _one(roll, roll.standings[rank], waiting) for rank in roots}
    first = max(drafts.values(), key=lambda draft: draft.confidence)
    same = tuple(
        rank
        for rank, draft in drafts.items()
        if draft.pitfall == first.pitfall and (draft.where == first.where or len(roots) == len(roll.standings))
    )
    if len(same) < 2:
        return first
    return _together(roll, first, same)


def _together(roll: Roll, draft: Draft, ranks: tuple[int, ...]) -> Draft:
    one = roll.place_name(draft.culprits[0])
    who = words.ranks_text(ranks)
    sentence = draft.sentence.replace(f"{one} is", f"{who} are", 1).replace(f"{one} has", f"{who} have", 1)
    sentence = sentence.replace(one, who, 1)
    return Draft(
        draft.pitfall, ranks, draft.confidence, draft.proven, sentence, draft.why, draft.where,
        tuple(rank for rank in draft.waiting if rank not in ranks), draft.hosts, draft.fix, draft.rivals,
        draft.evidence, (*ranks, *draft.waiting),
    )  # fmt: skip


def _one(roll: Roll, standing: Standing, waiting: Sequence[int]) -> Draft:
    if standing.process.state in ("stopped", "traced"):
        return _frozen(roll, standing, waiting)
    if _compiles(standing):
        return _compile(roll, standing, waiting)
    phase = standing.thread.phase
    if phase == "data" and not _computes_batch(roll, standing):
        return _data(roll, standing, waiting)
    if phase == "save" and not _BLOCKED_SAVE.search(standing.process.blocked_in or ""):
        return _save(roll, standing, waiting)
    if _on_storage(standing):
        return _storage(roll, standing, waiting)
    busy = busy_of(standing)
    if imports(standing):
        return _slow(roll, standing, waiting)
    if busy is not None and busy >= SPINNING_BUSY and not moves(roll, standing.rank):
        return _spinning(roll, standing, waiting, busy)
    if moves(roll, standing.rank):
        return _slow(roll, standing, waiting)
    return _stuck(roll, standing, waiting)


def place_of(roll: Roll, standing: Standing) -> Frame | None:
    """Where it left, else the user's innermost line on its stack, else its phase's line, else its last event's."""
    note = standing.process.exit_note
    if not standing.alive and note is not None and note.site is not None:
        return note.site
    found = innermost_user(standing.thread.stack, roll.snapshot.sources)
    if found is not None:
        return found
    if standing.thread.phase_site is not None:
        return standing.thread.phase_site
    return next((event.site for event in reversed(standing.process.ring) if event.site is not None), None)


def _tail(roll: Roll, waiting: Sequence[int]) -> str:
    """`, and ranks 0, 1 wait for it in all_reduce, train.py:40`."""
    others = [rank for rank in waiting if rank in roll.standings]
    if not others:
        return ""
    wait = roll.standings[others[0]].wait
    where = f" in {_waits_in(roll, others)}" if wait is not None else ""
    return f"; {words.ranks_text(others)} {words.verb(others, 'waits', 'wait')} for it{where}"


def _waits_in(roll: Roll, ranks: Sequence[int]) -> str:
    names = dict.fromkeys(
        f"{words.operation(wait)}{words.at(wait.site)}"
        for rank in ranks
        if (wait := roll.standings[rank].wait) is not None
    )
    shown = list(names)[:2]
    return words.sentence_list(shown) + (" and elsewhere" if len(names) > 2 else "")


def _evidence(roll: Roll, standing: Standing, place: Frame | None, text: str) -> tuple[Evidence, ...]:
    process = standing.process
    found = [Evidence("process state", text, standing.rank, process.host, roll.snapshot.taken_at)]
    code = code_of(place, roll.snapshot.sources)
    if place is not None:
        source = "stack" if standing.thread.stack else "record"
        found.append(Evidence(source, f"{words.place(place)}: {code}" if code else words.place(place), standing.rank,
                              process.host, roll.snapshot.taken_at))  # fmt: skip
    return tuple(found)


def _state_text(standing: Standing) -> str:
    process, thread = standing.process, standing.thread
    busy = busy_of(standing)
    parts = [state_words(process.state, process.blocked_in)]
    if busy is not None:
        parts.append(f"{busy:.0%} of a core")
    if thread.stable_for:
        parts.append(f"unchanged for {words.duration(thread.stable_for)}")
    return ", ".join(parts)


def _draft(
    roll: Roll,
    standing: Standing,
    waiting: Sequence[int],
    pitfall: str,
    confidence: float,
    what: str,
    why: str,
    place: Frame | None,
    rivals: tuple[Rival, ...] = (),
    fix: tuple[str, ...] = (),
) -> Draft:
    sentence = f"{roll.place_name(standing.rank)} {what}{words.at(place)}{_tail(roll, waiting)}"
    return Draft(
        pitfall=pitfall,
        culprits=(standing.rank,),
        confidence=confidence,
        proven=False,
        sentence=sentence,
        why=why,
        where=place,
        waiting=tuple(waiting),
        rivals=rivals,
        fix=fix,
        evidence=_evidence(roll, standing, place, _state_text(standing)),
        involved=(standing.rank, *waiting),
    )


def _frozen(roll: Roll, standing: Standing, waiting: Sequence[int]) -> Draft:
    traced = standing.process.state == "traced"
    how = "held by a debugger" if traced else "stopped (state T)"
    pid = standing.process.pid
    fix = (
        f"Detach the debugger from process {pid}, or let it continue."
        if traced
        else f"`kill -CONT {pid}` on {standing.process.host or 'its host'} lets it go on; find who stopped it.",
    )
    return _draft(
        roll, standing, waiting, "process-frozen", 0.95, f"is {how}",
        "The process does not run: the kernel holds it. Nothing in the program can wake it.",
        place_of(roll, standing), fix=fix,
    )  # fmt: skip


def _compiles(standing: Standing) -> bool:
    if imports(standing):
        return False
    return standing.thread.phase == "compile" or any(
        _COMPILING.search(frame.file) and frame.function != "<module>" for frame in standing.thread.stack[:60]
    )


def _compile(roll: Roll, standing: Standing, waiting: Sequence[int]) -> Draft:
    place = _outside_compiler(roll, standing) or place_of(roll, standing)
    return _draft(
        roll, standing, waiting, "compile-skew", 0.85, "is still compiling",
        "Its stack is inside torch's compiler, and the others wait for it.",
        place,
        rivals=(Rival("process-stuck", 0.15, "Look again in a minute: a compiler that works has another stack."),),
    )  # fmt: skip


def _outside_compiler(roll: Roll, standing: Standing) -> Frame | None:
    """The user's line that called the compiled function: the first one outside the compiler's frames."""
    inside = False
    for frame in standing.thread.stack:
        if _COMPILING.search(frame.file):
            inside = True
        elif inside and innermost_user((frame,), roll.snapshot.sources) is not None:
            return frame
    return standing.thread.phase_site


def _busy_worker(roll: Roll, standing: Standing) -> tuple[Child, Frame] | None:
    """The loader worker that is at a line of the user's, and that line; idle workers wait in torch's queue."""
    found: list[tuple[Child, Frame]] = []
    for child in standing.process.children:
        if child.kind != "loader-worker":
            continue
        frame = innermost_user(child.stack, roll.snapshot.sources)
        if frame is not None and not _idle_worker(child, roll):
            found.append((child, frame))
    stopped = [pair for pair in found if pair[0].state in ("stopped", "traced", "uninterruptible")]
    return (stopped or found or [None])[0]  # type: ignore[list-item]


def _computes_batch(roll: Roll, standing: Standing) -> bool:
    """True when the rank itself burns a core for its next batch, with no loader worker in between."""
    busy = busy_of(standing)
    if busy is None or busy < SPINNING_BUSY or moves(roll, standing.rank) or imports(standing):
        return False
    return not any(child.kind == "loader-worker" for child in standing.process.children)


def _idle_worker(child: Child, roll: Roll) -> bool:
    """Its innermost frames are the queue it takes indices from, with no line of the user's inside worker.py."""
    for frame in child.stack:
        if frame.file.endswith("/torch/utils/data/_utils/worker.py"):
            return True
        if innermost_user((frame,), roll.snapshot.sources) is not None:
            return False
        if frame.file.endswith("/torch/utils/data/_utils/fetch.py"):
            return False
    return not child.stack


def _data(roll: Roll, standing: Standing, waiting: Sequence[int]) -> Draft:
    worker = _busy_worker(roll, standing)
    steps = words.count(steps_of(standing), "step")
    rivals = (Rival("slow-preprocessing", 0.25, "If it moves on by itself later, the loader is slow, not stuck."),)
    if worker is not None:
        child, frame = worker
        state = state_words(child.state, child.blocked_in)
        draft = _draft(
            roll, standing, waiting, "loader-stalled", 0.9,
            f"gets no batch after {steps}: its loader worker {child.pid} is stuck",
            f"The main process waits for its DataLoader; worker {child.pid} is {state}"
            f"{words.at(frame)} in {frame.function or 'the dataset'}.",
            frame, rivals=rivals,
        )  # fmt: skip
        extra = Evidence("worker stack", f"{words.place(frame)}: {code_of(frame, roll.snapshot.sources)}",
                         standing.rank, standing.process.host)  # fmt: skip
        return Draft(**{name: getattr(draft, name) for name in Draft.__slots__} | {
            "evidence": (*draft.evidence, extra)})  # fmt: skip
    return _draft(
        roll, standing, waiting, "loader-stalled", 0.85, f"gets no batch after {steps}",
        "It is inside its data loader and no batch comes: a blocked read, a lock, or slow storage.",
        place_of(roll, standing), rivals=rivals,
    )  # fmt: skip


def _save(roll: Roll, standing: Standing, waiting: Sequence[int]) -> Draft:
    return _draft(
        roll, standing, waiting, "slow-checkpoint", 0.8, "is writing a checkpoint",
        "It is inside a save while the others wait for it.",
        place_of(roll, standing),
        rivals=(Rival("storage-unreachable", 0.3, "`ls` of the target folder on that host: does it answer?"),),
    )  # fmt: skip


def _on_storage(standing: Standing) -> bool:
    process = standing.process
    if process.blocked_in and _SLOW_STORAGE.search(process.blocked_in):
        return True
    return process.state == "uninterruptible"


def _storage(roll: Roll, standing: Standing, waiting: Sequence[int]) -> Draft:
    return _draft(
        roll, standing, waiting, "storage-unreachable", 0.75, "is in uninterruptible sleep",
        f"The kernel holds the process ({standing.process.blocked_in or 'a device or file system call'}): a disk or "
        "network file system that does not answer, most of the time.",
        place_of(roll, standing),
        rivals=(Rival("process-frozen", 0.2, "`cat /proc/PID/wchan` and `dmesg -T` name the driver it waits for."),),
    )  # fmt: skip


def _spinning(roll: Roll, standing: Standing, waiting: Sequence[int], busy: float) -> Draft:
    return _draft(
        roll, standing, waiting, "process-spinning", 0.85,
        f"burns {min(busy, 1.0):.0%} of a core and has come to no recorded call for {_quiet_text(roll, standing)}",
        "The process computes all the time and gets nowhere: a loop that does not end, or a very long computation.",
        place_of(roll, standing),
        rivals=(
            (Rival("loader-stalled", 0.3, "It is making its next batch: does the dataset come through later?"),)
            if standing.thread.phase == "data"
            else (Rival("straggler", 0.2, "If it comes through later, the work there is only long."),)
        ),
    )  # fmt: skip


def _quiet_text(roll: Roll, standing: Standing) -> str:
    return words.duration(max(standing.thread.stable_for, _quiet_for(roll, standing.rank)))


def _slow(roll: Roll, standing: Standing, waiting: Sequence[int]) -> Draft:
    behind = last_time(roll)
    doing = "is importing modules" if imports(standing) else f"is on its way (in {standing.thread.phase})"
    return _draft(
        roll, standing, waiting, "straggler", 0.4, doing,
        f"It still moves; the newest event is {words.duration(max(0.0, roll.snapshot.taken_at - behind))} old.",
        place_of(roll, standing),
        rivals=(Rival("process-stuck", 0.3, "Look again: a stuck rank stands at the same line."),),
    )  # fmt: skip


def _stuck(roll: Roll, standing: Standing, waiting: Sequence[int]) -> Draft:
    place = place_of(roll, standing)
    code = code_of(place, roll.snapshot.sources)
    known = bool(standing.thread.stack) or standing.process.blocked_in is not None
    state = state_words(standing.process.state, standing.process.blocked_in)
    return _draft(
        roll, standing, waiting, "process-stuck", 0.9 if known else 0.5,
        f"{action(code, standing.process.blocked_in)} outside any collective",
        (
            "Its stack shows it at this line, outside any collective, while the others wait in theirs."
            if roll.snapshot.origin == "files"
            else f"The process is {state}, and its record has not changed for {_quiet_text(roll, standing)}."
        )
        + (f" Its line is `{code}`." if code else ""),
        place,
        rivals=() if known else (
            Rival("straggler", 0.3, f"`py-spy dump --pid {standing.process.pid}` on its host shows where it is."),
        ),
    )  # fmt: skip
