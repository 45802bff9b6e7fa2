"""What a rank's own ring and counters tell without looking at other ranks: steps, skipped batches, loader ends."""

from __future__ import annotations

from rankcall.diagnose.roll import Roll, Standing
from rankcall.snapshot import Event, Frame

_PROGRESS = frozenset({"forward", "backward", "eval-forward", "step", "scaler-step"})


def steps_of(standing: Standing) -> int:
    """Optimizer steps of the training loop, as far as known."""
    process = standing.process
    return process.loop_step if process.loop_step is not None else process.counters.optimizer_steps


def excess_batches(standing: Standing) -> int:
    """Batches that were handed out and never reached a backward (or an evaluation)."""
    counters = standing.process.counters
    used = (counters.backwards or counters.forwards) + counters.eval_forwards
    return counters.batches - used if counters.batches else 0


def forward_excess(standing: Standing) -> int:
    """Forwards with gradients that no backward followed, the one in hand left out."""
    counters = standing.process.counters
    if not counters.forwards:
        return 0  # no wrapped model: only the backwards are seen
    last = next((e.kind for e in reversed(standing.process.ring) if e.kind in ("forward", "backward", "step")), "")
    return counters.forwards - counters.backwards - (last == "forward" and standing.present)


def backward_site(standing: Standing) -> Frame | None:
    """The user's line of the last backward."""
    events = (event for event in reversed(standing.process.ring) if event.kind == "backward")
    return next((event.site for event in events if event.site is not None), None)


def skipped_batches(standing: Standing) -> list[Event]:
    """Batches of the training loop that were followed by another one of the same line with no work between.

    A loop that never has recorded work after its batches (an evaluation of the inner model) is no such loop.
    """
    found: list[Event] = []
    working: set[Frame] = set()
    pending: Event | None = None
    for event in standing.process.ring:
        if event.kind == "batch":
            if pending is not None and pending.site == event.site:
                found.append(pending)
            pending = event
        elif event.kind in _PROGRESS or event.kind == "collective":
            if pending is not None and pending.site is not None:
                working.add(pending.site)
            pending = None
    return [event for event in found if event.site in working]


def skipped_backwards(standing: Standing) -> list[Event]:
    """Forwards with gradients that were followed by another forward of the same line with no backward between."""
    found: list[Event] = []
    pending: Event | None = None
    for event in standing.process.ring:
        if event.kind == "forward":
            if pending is not None and pending.site == event.site:
                found.append(pending)
            pending = event
        elif event.kind == "backward":
            pending = None
    return found


def training_site(standing: Standing) -> Frame | None:
    """The user's line of the last forward with gradients, else of the last backward."""
    for kind in ("forward", "backward"):
        for event in reversed(standing.process.ring):
            if event.kind == kind and event.site is not None:
                return event.site
    return None


def last_exception_event(standing: Standing) -> Event | None:
    """The last exception that passed a recorded place and was not the end."""
    return next((event for event in reversed(standing.process.ring) if event.kind == "exception"), None)


def last_time(roll: Roll) -> float:
    """When the last event of any rank was written."""
    times = [s.process.ring[-1].time - s.process.clock_offset for s in roll.standings.values() if s.process.ring]
    return max(times, default=roll.snapshot.taken_at)
