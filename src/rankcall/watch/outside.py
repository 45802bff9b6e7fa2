"""A snapshot of a run that another process watches: what `rankcall why` sees when it comes from outside."""

from __future__ import annotations

import time
from pathlib import Path

from rankcall.snapshot import Snapshot
from rankcall.watch import processes
from rankcall.watch.asking import ask_dumps, ask_stacks
from rankcall.watch.gathering import process_of, sources_of, with_children
from rankcall.watch.live import LiveRun
from rankcall.watch.looks import STABLE, Look, may_ask, may_signal

_BETWEEN_LOOKS = 0.6
_ASK_LIMIT = 0.5


def snapshot_of(run: LiveRun) -> Snapshot:
    """Look twice, then ask the ranks that stand still. Quiet times come from the records' own clocks: we were not
    there before."""
    folder = Path(run.records)
    looks = _looks(folder)
    for look in looks:
        look.look(0.0)
    time.sleep(_BETWEEN_LOOKS)
    for look in looks:
        look.look(_BETWEEN_LOOKS)
        for place, slot in enumerate(look.slots):
            if look.slot_quiet.get(place):
                look.slot_quiet[place] = max(look.slot_quiet[place], time.time() - slot.time)
        if look.quiet:
            look.quiet = max(look.quiet, time.time() - look.changed_at)
    looks = _ranks(looks)
    alive = [look for look in looks if not look.gone and look.quiet >= STABLE]
    still = [look.asked for look in alive]
    stats = processes.all_stats()
    below = [(child, stats[child].start) for pid, _ in still for child in processes.descendants(pid, stats)[:16]]
    dumps = ask_dumps(folder, [look.asked for look in alive if may_ask(look)], _ASK_LIMIT)
    stacks = ask_stacks(folder, [look.asked for look in alive if may_signal(look)] + below, _ASK_LIMIT)
    found = [with_children(process_of(look, stacks, dumps, {}, ()), stats, stacks) for look in looks]
    quiet = min((look.quiet for look in looks if not look.gone), default=0.0)
    return Snapshot(
        taken_at=time.time(),
        reason="request",
        command=run.command,
        run_dir=run.run_dir,
        started_at=run.started_at,
        world_size=max((process.world_size or 0 for process in found), default=0) or None,
        attempt=max((process.attempt for process in found), default=0),
        quiet_for=quiet,
        processes=tuple(found),
        sources=sources_of(found),
    )


def _looks(folder: Path) -> list[Look]:
    found = []
    for path in sorted(folder.glob("*.rec")):
        try:
            found.append(Look(path))
        except (OSError, ValueError):
            continue
    return found


def _ranks(looks: list[Look]) -> list[Look]:
    """The latest attempt's ranks; spawn parents and earlier attempts are left out."""
    parents = {look.identity("ancestor") for look in looks if look.identity("ancestor") != f"{look.pid}-{look.start}"}
    ranks = [
        look for look in looks if look.identity("initialized") != "no" or f"{look.pid}-{look.start}" not in parents
    ]
    latest = max((look.number("attempt") or 0 for look in ranks), default=0)
    return [look for look in ranks if (look.number("attempt") or 0) == latest]
