"""The ranks' timelines as a trace in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

One process a rank, its number being the rank, and one more for the verdict. `docs/timelines.md` says how to read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

from rankcall.findings import Report, Verdict
from rankcall.render import plain
from rankcall.render.trace_events import (
    Args,
    Shown,
    arrow,
    counter,
    number,
    point,
    process_names,
    span,
    to_json,
    track_names,
)
from rankcall.render.trace_ranks import AWAITED, STATE, RankTracks
from rankcall.render.trace_scene import DrawnRank, Scene
from rankcall.snapshot import Snapshot, Wait

MOST_EVENTS = 2_000_000
MOST_ARROWS = 256
_MOST_INCIDENTS = 100
_MOST_TEXTS = 10  # fixes, rivals
_VERDICT, _ABOUT = 0, 1  # the verdict's tracks


def to_perfetto(report: Report, snapshot: Snapshot, most_events: int = MOST_EVENTS) -> str:
    """The trace as JSON, ending in a newline, of at most `most_events` events, the newest ones. A bound that leaves no
    room for about a hundred a rank is passed: what each rank is, and its state, are always there."""
    return "".join(trace_parts(report, snapshot, most_events))


def trace_parts(report: Report, snapshot: Snapshot, most_events: int = MOST_EVENTS) -> Iterator[str]:
    """The same text piece by piece, for whoever writes it to a file: a large job's is hundreds of megabytes."""
    scene = Scene(report, snapshot, most_events)
    separator = '{"displayTimeUnit":"ms","traceEvents":[\n'
    for event in _events(scene):
        yield separator
        yield to_json(event)
        separator = ",\n"
    yield '\n],"otherData":'
    yield to_json(_about(scene))
    yield "}\n"


def _events(scene: Scene) -> Iterator[Shown]:
    yield from _verdict(scene)
    for place, rank in enumerate(scene.ranks, 1):
        yield from RankTracks(scene, rank, place).events()
    yield from _waiting(scene)
    yield from _arrows(scene)
    # Last, when everything is counted.
    yield from track_names(scene.verdict_number, scene.first_track + _ABOUT, "about")
    track = scene.first_track + _ABOUT
    yield point(scene.verdict_number, track, 0, "about this trace", "about", _about(scene))


def _about(scene: Scene) -> Args:
    """What the trace is, and what it does not show: complete after all events."""
    begin = datetime.fromtimestamp(scene.begin, timezone.utc)
    return {
        "made by": f"rankcall {plain.line(scene.report.tool.version, 80)}",
        "time 0, seconds since 1970 UTC": f"{scene.begin:.6f}",
        "time 0, UTC": begin.isoformat(timespec="microseconds"),
        "snapshot taken at, microseconds": scene.now,
        "ranks": len(scene.ranks),
        "left out": {what: count for what, count in sorted(scene.left_out.items()) if count},
    }


# --- the verdict ------------------------------------------------------------------------------------------------


def _verdict(scene: Scene) -> Iterator[Shown]:
    pid, track = scene.verdict_number, scene.first_track + _VERDICT
    verdict, incidents = scene.report.verdict, scene.report.incidents
    size = scene.snapshot.world_size
    # Viewers write the process's number behind its name: "verdict, world size 8".
    name = "verdict, world size" if size == pid else f"verdict, world size {number(size) or 'unknown'}, number"
    yield from process_names(pid, name, 0)
    if verdict is not None or incidents:
        yield from track_names(pid, track, "verdict")
    if verdict is not None:
        args, sentence = _verdict_args(scene, verdict), _sentence(verdict)
        end = max(scene.now, scene.micros(scene.end), 1)
        yield span(pid, track, min(_trouble(scene, verdict), end - 1), end, sentence, "verdict", args, loud=True)
        yield point(pid, track, scene.now, sentence, "verdict", args, everywhere=True)
    scene.left_out["earlier verdicts"] += max(len(incidents) - _MOST_INCIDENTS, 0)
    for one in incidents[-_MOST_INCIDENTS:]:
        if scene.begin <= one.at <= scene.end:
            name = "said so" if one.withdrawn_at is None else "said so, withdrawn later"
            args = {"sentence": _sentence(one.verdict), "attempt": number(one.attempt)}
            yield point(pid, track, scene.micros(one.at), name, "verdict", args)


def _sentence(verdict: Verdict) -> str:
    return plain.line(verdict.sentence or verdict.title or verdict.pitfall)


def _verdict_args(scene: Scene, verdict: Verdict) -> Args:
    where = verdict.where
    return {
        "pitfall": scene.text(verdict.pitfall),
        "title": plain.line(verdict.title),
        "why": plain.paragraph(verdict.why),
        "culprits": plain.ranges(verdict.culprits),
        "waiting": plain.ranges(verdict.waiting),
        "where": scene.place(where),
        "code": plain.code(where.code) if where is not None and where.code else None,
        "fix": [plain.paragraph(fix) for fix in verdict.fix[:_MOST_TEXTS]],
        "rivals": [
            f"{plain.line(one.pitfall, 80)}: {plain.paragraph(one.tell_apart)}" for one in verdict.rivals[:_MOST_TEXTS]
        ],
        "confidence": verdict.confidence if 0.0 <= verdict.confidence <= 1.0 else None,
        "proven": verdict.proven,
    }


def _trouble(scene: Scene, verdict: Verdict) -> int:
    """When it began to show: the first rank waited, or a culprit ended."""
    waiting = frozenset(verdict.waiting)
    found = [
        scene.state_span(rank)[0]
        for rank in scene.ranks
        if (rank.process.rank in waiting and rank.wait is not None) or (rank.culprit and rank.ended is not None)
    ]
    return min(found, default=scene.now)


def _waiting(scene: Scene) -> Iterator[Shown]:
    """How many ranks wait: it shows how a hang spread."""
    since = sorted(scene.state_span(rank)[0] for rank in scene.ranks if rank.wait is not None)
    for count, at in enumerate(since, 1):
        yield counter(scene.verdict_number, at, "ranks", "waiting", count)


# --- who waits for whom -----------------------------------------------------------------------------------------


def _arrows(scene: Scene) -> Iterator[Shown]:
    """From the state of each waiting rank to the rank it waits for.

    Perfetto turns an arrow round that leads to a slice which began earlier than the one it comes from. So it leads to
    a slice of its own, which begins when the last rank had come to wait.
    """
    pairs = _waits_for(scene)
    scene.left_out["arrows"] += max(len(pairs) - MOST_ARROWS, 0)
    awaiting: dict[int, list[DrawnRank]] = {}
    for waiting, other in pairs:
        awaiting.setdefault(other.number, []).append(waiting)
    begins = {}
    for pid, ranks in awaiting.items():
        begins[pid] = start = 1 + max(scene.state_span(rank)[0] for rank in ranks)
        by = plain.ranges(rank.number for rank in ranks)
        name = f"awaited by {'rank' if len(ranks) == 1 else 'ranks'} {by}"
        track, end = scene.first_track + AWAITED, max(scene.now, start + 1)
        yield from track_names(pid, track, "awaited")
        yield span(pid, track, start, end, name, "awaited", {"by": by}, loud=True)
    for ident, (waiting, other) in enumerate(pairs[:MOST_ARROWS], 1):
        source = waiting.number, scene.first_track + STATE, scene.state_span(waiting)[0]
        target = other.number, scene.first_track + AWAITED, begins[other.number]
        yield from arrow(ident, "waits for", source, target)


def _waits_for(scene: Scene) -> list[tuple[DrawnRank, DrawnRank]]:
    """Pairs (waiting, awaited), the first rank of every host before the second of any: where there are more pairs than
    arrows, all parts of the job still have some."""
    current = {rank.number: rank for rank in scene.ranks if rank.number == rank.process.rank}
    verdict = scene.report.verdict
    if verdict is not None:
        awaited = list(verdict.culprits)
        named = {rank for rank in (*verdict.waiting, *awaited) if rank in current}
    else:
        awaited = [row.rank for row in scene.report.ranks if row.state == "missing" and row.rank is not None]
        named = set(current)
    of_host: Counter[str] = Counter()
    found: list[tuple[int, DrawnRank, DrawnRank]] = []
    for waiting in (current[rank] for rank in sorted(named)):
        other = _awaited(scene, waiting, awaited, current)
        if other is not None:
            found.append((of_host[waiting.process.host], waiting, other))
            of_host[waiting.process.host] += 1
    found.sort(key=lambda one: one[0])
    return [(waiting, other) for _, waiting, other in found]


def _awaited(
    scene: Scene, waiting: DrawnRank, awaited: Iterable[int], current: dict[int, DrawnRank]
) -> DrawnRank | None:
    """The peer; else the first awaited rank of the wait's group that is not in the same operation, so never itself."""
    wait = waiting.wait
    if wait is None:
        return None
    if wait.peer is not None:
        return current.get(wait.peer)
    members = scene.members(waiting.process, wait.group)
    for rank in awaited:
        other = current.get(rank)
        if other is None or (members and rank not in members):
            continue
        if other.wait is None or _key(other.wait) != _key(wait):
            return other
    return None


def _key(wait: Wait) -> tuple[str, int | None, str]:
    return wait.group, wait.seq, wait.op.rpartition(":")[2]
