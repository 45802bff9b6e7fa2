"""Two threads of one rank in one group: the order of their operations is chance, and differs from rank to rank."""

from __future__ import annotations

from rankcall.diagnose import words
from rankcall.diagnose.case import Case, Party
from rankcall.diagnose.drafts import Draft
from rankcall.diagnose.roll import Standing
from rankcall.findings import Evidence, Rival
from rankcall.snapshot import Thread


def interleaved(case: Case) -> Draft | None:
    """A verdict if the ranks parted where a second thread's operation came between those of the training thread."""
    group = case.parting.group
    ranks = tuple(sorted(rank for party in case.parties for rank in party.ranks))
    if not any(_from_background(case, party) for party in case.parties):
        return None
    seconds = {rank: found for rank in ranks if (found := _second_thread(case.roll.standings[rank], group)) is not None}
    if not seconds:
        return None
    calls = [
        f"{words.ranks_text(party.ranks)} {words.verb(party.ranks, 'has', 'have')} {words.operation(party.event)}"
        f"{words.at(party.site) or ' of a background thread'}"
        for party in case.parties[:4]
        if party.event is not None
    ]
    site = next((party.site for party in case.parties if party.site is not None), None)
    return Draft(
        pitfall="collective-mismatch",
        culprits=ranks,
        confidence=0.8,
        proven=True,
        sentence=f"two threads use one group at the same time, in another order on each rank: "
        f"{', where '.join(calls)}",
        why="A group matches operations by their order alone. A background thread (an asynchronous save, say) calls "
        "into the group while the training goes on, and the threads' order is chance.",
        where=site,
        waiting=(),
        fix=(
            "Give the background work a group of its own: make `dist.new_group()` once, on all ranks, and pass it on, "
            "as in `dcp.async_save(…, process_group=group)`.",
        ),
        rivals=(Rival("data-dependent-skip", 0.15, "Does it also fail with the background work turned off?"),),
        evidence=tuple(
            Evidence("record", f"thread {thread.name or thread.tid} has started {thread.collectives} operations, "
                     "beside the training thread", rank, case.roll.host(rank))
            for rank, thread in list(seconds.items())[:8]
        ),
        involved=ranks,
    )  # fmt: skip


def _from_background(case: Case, party: Party) -> bool:
    """A collective that no line of the user's called, where the ranks parted."""
    return party.is_collective and party.site is None


def _second_thread(standing: Standing, group: str) -> Thread | None:
    """A thread other than the training one that waits in this group or has started operations."""
    for thread in standing.process.threads:
        if thread is standing.thread or thread == standing.thread:
            continue
        if thread.wait is not None and thread.wait.group == group:
            return thread
        if thread.collectives and thread.wait is None:
            return thread
    return None
