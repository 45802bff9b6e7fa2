"""From a snapshot to a report: which judge is asked, in which order, and when an answer may be given at all."""

from __future__ import annotations

import dataclasses

from rankcall.diagnose import crash, dumped, handling, hang, launcher, mismatch, notes, rows, start
from rankcall.diagnose.drafts import Draft, to_finding, to_verdict
from rankcall.diagnose.graph import Graph, build
from rankcall.diagnose.roll import Roll, call_roll
from rankcall.diagnose.roots import frozen, moves, works
from rankcall.diagnose.roots import judge as judge_roots
from rankcall.diagnose.unknown import unknown
from rankcall.diagnose.waits import with_waits
from rankcall.findings import Evidence, Finding, Job, Outcome, Report
from rankcall.snapshot import Snapshot

# A user who asks before anything is proven or stalled gets the best guess, said to be one.
ASKED_EARLY = 0.6
# Verdicts whose proof is that nobody is left who could end the wait, and how sure they are when somebody may be.
_CYCLES = ("group-order-inversion", "unmatched-send-recv")
NOT_SURE = 0.8


def diagnose(snapshot: Snapshot) -> Report:
    """Judge a snapshot. Pure: reads no files, imports no torch, and gives the same report for the same snapshot.

    The verdict is None when nothing is wrong, nothing is proven yet, or nothing can be told; notes say which.
    """
    roll = with_waits(call_roll(snapshot))
    causes = _causes(roll)
    draft = dumped.together(causes) if causes else None
    evidence: list[Evidence] = []
    verdict = to_verdict(draft, roll, evidence) if draft is not None else None
    beside = notes.silent_mismatches(roll, draft) if snapshot.origin == "watch" else []
    if snapshot.outcome == "completed":
        beside = notes.notes(roll) + beside
    if len(causes) > 1:
        beside = [(cause, "error") for cause in causes] + beside
    findings: list[Finding] = [to_finding(found, roll, evidence, severity) for found, severity in beside]
    stands_still = snapshot.stalled or snapshot.outcome == "hung" or roll.over or snapshot.origin == "files"
    text = unknown(roll, build(roll)) if verdict is None and stands_still else ""
    return Report(
        verb="run",
        job=_job(snapshot, roll),
        outcome=_outcome(snapshot, roll, draft),
        verdict=verdict,
        findings=tuple(findings),
        ranks=rows.rows(roll, _awaited(roll)),
        evidence=tuple(evidence),
        data={"unknown": text} if text else {},
    )


def _awaited(roll: Roll) -> frozenset[int]:
    """Ranks that others wait for and that wait in nothing; asked only where no process was looked at."""
    if roll.snapshot.origin == "watch" or not roll.snapshot.stalled:
        return frozenset()
    return frozenset(build(roll).roots)


def _job(snapshot: Snapshot, roll: Roll) -> Job:
    hosts = dict.fromkeys(process.host for process in snapshot.processes if process.host)
    return Job(
        world_size=roll.world_size or None,
        hosts=tuple(hosts),
        command=snapshot.command,
        started_at=snapshot.started_at,
        run_dir=snapshot.run_dir,
    )


def _outcome(snapshot: Snapshot, roll: Roll, draft: Draft | None) -> Outcome | None:
    if snapshot.outcome is not None:
        return snapshot.outcome
    if roll.over or snapshot.launcher_error is not None:
        return "crashed"
    return "hung" if draft is not None and (draft.proven or snapshot.stalled) else None


def _causes(roll: Roll) -> list[Draft]:
    """The drafts that may be shown now: one, unless only dumps are left, which may show several independent causes."""
    if roll.snapshot.origin == "files":
        found = dumped.judge(roll, build(roll))
        if found or any(standing.process.dump is not None for standing in roll.standings.values()):
            return found
    draft = verdict_of(roll)
    return [draft] if draft is not None else []


def verdict_of(roll: Roll) -> Draft | None:
    """The draft that may be shown now, or None."""
    snapshot = roll.snapshot
    if snapshot.outcome == "completed":
        return None
    own = crash.judge(roll)
    failed = launcher.judge(roll)
    if failed is not None and own is None:
        return failed
    if own is not None:
        if own.pitfall == "world-size-mismatch":
            return start.world_sizes(roll) or own
        return _mismatch_before(roll, own) or own
    graph = build(roll)
    draft = (
        start.judge(roll, graph)
        or _frozen(roll, graph)
        or (handling.taking_leave(roll) if roll.over else None)
        or hang.judge(roll, graph)
        or crash.at_teardown(roll)
    )
    return _allowed(roll, draft) if draft is not None else None


def _mismatch_before(roll: Roll, own: Draft) -> Draft | None:
    """A provable size mismatch just before a rank's own exception: what it raised came of the garbage it got."""
    if own.pitfall != "program-error" or len(own.culprits) != 1:
        return None
    rank = own.culprits[0]
    ring = roll.standings[rank].process.ring
    last = next((event for event in reversed(ring) if event.kind == "collective"), None)
    for difference in mismatch.differences(roll):
        if difference.aspect != "size" or rank not in difference.calls or last is None:
            continue
        if (last.group, last.seq) == (difference.group, difference.seq):
            return mismatch.judge(roll, difference, own.waiting)
    return None


def _frozen(roll: Roll, graph: Graph) -> Draft | None:
    held = [rank for rank in roll.standings if frozen(roll, rank)]
    if not held or len(held) == len(roll.standings):
        return None
    return judge_roots(roll, held, graph.waiting_for(tuple(held)))


def _another_may_act(roll: Roll, draft: Draft) -> bool:
    """Whether a rank of the cycle has another thread of the program's own, which could still end the wait."""
    involved = draft.involved or draft.culprits
    return any(
        not thread.main and thread.wait is None and (thread.stack or thread.collectives)
        for rank in involved
        if rank in roll.standings
        for thread in roll.standings[rank].process.threads
        if thread is not roll.standings[rank].thread
    )


def _allowed(roll: Roll, draft: Draft) -> Draft | None:
    """Proven and settled, or stalled, or asked for: otherwise patience."""
    snapshot = roll.snapshot
    if draft.proven and draft.pitfall in _CYCLES and not roll.over and _another_may_act(roll, draft):
        draft = dataclasses.replace(draft, proven=False, confidence=min(draft.confidence, NOT_SURE))
    if roll.over or snapshot.stalled or snapshot.outcome in ("crashed", "hung"):
        return draft
    involved = draft.involved or (*draft.culprits, *draft.waiting)
    settled = all(roll.standings[rank].settled for rank in involved if rank in roll.standings)
    stopped = draft.pitfall == "process-frozen" and all(frozen(roll, rank) for rank in draft.culprits)
    if (draft.proven and settled) or stopped:
        return draft
    # A rank that computes or moves is on its way: that is no answer to "what is wrong?".
    on_its_way = any(works(roll.standings[r]) or moves(roll, r) for r in draft.culprits if r in roll.standings)
    if snapshot.reason in ("request", "interrupt") and not on_its_way:
        return dataclasses.replace(draft, confidence=draft.confidence * ASKED_EARLY)
    return None
