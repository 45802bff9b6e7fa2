"""A draft is what a judge found; here it becomes a verdict, with the catalogue's words added to its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from rankcall.diagnose.frames import where as where_in
from rankcall.diagnose.roll import Roll
from rankcall.findings import Evidence, Finding, Rival, Severity, Verdict
from rankcall.pitfalls import page
from rankcall.snapshot import Frame

MOST_FIXES = 6  # nobody reads more at 2 a.m.
# Two possible sides and nothing to choose between them: never more than this for the side.
TIE = 0.5


@dataclass(frozen=True, slots=True)
class Draft:
    """What one judge found. Fields as in `Verdict`; `fix` holds only what is specific to this job."""

    pitfall: str
    culprits: tuple[int, ...]
    confidence: float
    proven: bool
    sentence: str
    why: str
    where: Frame | None = None
    waiting: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    rivals: tuple[Rival, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    # Ranks whose records led here; the age of the newest of them is how fast the verdict came.
    involved: tuple[int, ...] = field(default=())


def to_verdict(draft: Draft, roll: Roll, evidence: list[Evidence]) -> Verdict:
    """Turn a draft into a verdict and append its evidence to the report's list."""
    catalogue = page(draft.pitfall)
    first = len(evidence)
    evidence.extend(draft.evidence)
    return Verdict(
        pitfall=draft.pitfall,
        layer=catalogue.layer,
        title=catalogue.title,
        sentence=draft.sentence,
        confidence=round(draft.confidence, 2),
        proven=draft.proven,
        culprits=tuple(sorted(set(draft.culprits))),
        hosts=draft.hosts or roll.hosts(sorted(draft.culprits)),
        waiting=tuple(sorted(set(draft.waiting) - set(draft.culprits))),
        where=where_in(draft.where, roll.snapshot.sources),
        why=draft.why,
        fix=_fixes(draft.fix, catalogue.fix),
        rivals=draft.rivals if draft.confidence < 0.9 or draft.rivals else (),
        detected_after_s=_detected_after(draft, roll),
        evidence=tuple(range(first, len(evidence))),
    )


def to_finding(draft: Draft, roll: Roll, evidence: list[Evidence], severity: Severity) -> Finding:
    """Turn a draft into a finding beside the verdict."""
    first = len(evidence)
    evidence.extend(draft.evidence)
    return Finding(
        pitfall=draft.pitfall,
        severity=severity,
        message=draft.sentence,
        ranks=tuple(sorted(set(draft.culprits))),
        hosts=draft.hosts or roll.hosts(sorted(draft.culprits)),
        where=where_in(draft.where, roll.snapshot.sources),
        fix=_fixes(draft.fix, page(draft.pitfall).fix),
        evidence=tuple(range(first, len(evidence))),
    )


def _fixes(own: tuple[str, ...], general: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*own, *general)))[:MOST_FIXES]


def _detected_after(draft: Draft, roll: Roll) -> float | None:
    """Seconds between the last change among the records involved and the look that this was judged from."""
    if roll.snapshot.origin == "files":
        return None  # nobody was looking
    involved = draft.involved or (*draft.culprits, *draft.waiting)
    changes = []
    for rank in involved:
        standing = roll.standings.get(rank)
        if standing is None:
            continue
        change = standing.process.last_change
        if change is not None:
            changes.append(change - standing.process.clock_offset)
        if standing.ended_at is not None:
            changes.append(standing.ended_at)
    return round(max(0.0, roll.snapshot.taken_at - max(changes)), 3) if changes else None
