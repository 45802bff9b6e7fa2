"""Sends and receives without a partner."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rankcall.diagnose import words
from rankcall.diagnose.drafts import Draft
from rankcall.diagnose.graph import Graph
from rankcall.diagnose.roll import Roll
from rankcall.findings import Evidence, Rival
from rankcall.snapshot import Process, Wait


def lonely(roll: Roll, graph: Graph) -> tuple[int, ...]:
    """The ranks in a send or receive whose partner has not come, and is itself waiting elsewhere or gone."""
    found = []
    for rank in graph.waiting:
        wait = roll.standings[rank].wait
        if wait is None or wait.kind != "p2p" or not graph.blockers[rank]:
            continue
        peer = roll.standings.get(wait.peer) if wait.peer is not None else None
        if peer is None or peer.wait is not None or not peer.alive:
            found.append(rank)
    return tuple(found)


def judge(roll: Roll, graph: Graph, among: Collection[int] | None = None) -> Draft | None:
    """A verdict if sends and receives wait for one another, or for a partner that has gone past them; `among`: only
    those of these ranks are looked at."""
    ranks = tuple(rank for rank in lonely(roll, graph) if among is None or rank in among)
    # A rank held up by another's unmatched call is an echo: only ranks in the circle, or before a gone peer, count.
    cycle = {rank for circle in graph.cycles for rank in circle}
    roots = [rank for rank in ranks if rank in cycle or not _reaches(roll, graph, rank)]
    if not roots:
        return None
    # A peer that is in no send or receive has gone past this one: there the rounds came apart, and it is the one
    # that does not come. Those who wait for the rank in front of it are held up by it too.
    past = [rank for rank in roots if _gone_past(roll, rank)]
    first = min(past or roots, key=lambda rank: _order(roll, rank))
    wait = roll.standings[first].wait
    if wait is None or wait.peer is None:
        return None
    if past:
        return _draft(roll, graph, first, wait, (wait.peer,))
    pairs = [rank for rank in roots if _paired(roll, rank, roots)]
    culprits = _culprits(roll, first, wait, pairs)
    return _draft(roll, graph, first, wait, culprits)


def _gone_past(roll: Roll, rank: int) -> bool:
    """True when its peer waits in a collective, or has ended."""
    wait = roll.standings[rank].wait
    peer = roll.standings.get(wait.peer) if wait is not None and wait.peer is not None else None
    if peer is None:
        return False
    return not peer.present or (peer.wait is not None and peer.wait.kind != "p2p")


def _reaches(roll: Roll, graph: Graph, rank: int) -> bool:
    """True when behind this rank's peer stands a live root of another kind."""
    return any(other in graph.roots and roll.standings[other].alive for other in graph.behind(rank)
               if other in roll.standings)  # fmt: skip


def _order(roll: Roll, rank: int) -> tuple[bool, float, int]:
    wait = roll.standings[rank].wait
    since = wait.since if wait is not None and wait.since is not None else float("inf")
    # A receive that nobody sends to says more than the send that waits behind it.
    return (wait is not None and not is_receive(wait), since, rank)


def is_receive(wait: Wait) -> bool:
    """True for recv and irecv."""
    return wait.op.lstrip("i").startswith("recv")


def _paired(roll: Roll, rank: int, roots: Sequence[int]) -> bool:
    wait = roll.standings[rank].wait
    return wait is not None and wait.peer in roots


def _culprits(roll: Roll, first: int, wait: Wait, pairs: Sequence[int]) -> tuple[int, ...]:
    """Both sides: a call without partner is a disagreement, and the numbers cannot tell who is wrong."""
    if len(pairs) > 1:
        return tuple(sorted(pairs))
    assert wait.peer is not None
    return tuple(sorted({first, wait.peer}))


def counted(process: Process, direction: str, peer: int, tag: int | None) -> int:
    """How many sends or receives to or from `peer` with this tag the process has started."""
    most = seen = 0
    for event in process.ring:
        if event.kind == direction and event.peer in (peer, None) and (event.tag or 0) == (tag or 0):
            seen += 1
            most = max(most, event.nth or 0)
    return max(most, seen)


def _draft(roll: Roll, graph: Graph, first: int, wait: Wait, culprits: tuple[int, ...]) -> Draft:
    peer = wait.peer if wait.peer is not None else -1
    standing = roll.standings.get(peer)
    other = standing.wait if standing is not None else None
    wanted = "send" if is_receive(wait) else "recv"
    tagged = f" with tag {wait.tag}" if wait.tag else ""
    done = counted(standing.process, wanted, first, wait.tag) if standing is not None else 0
    nth = f"number {wait.nth}" if wait.nth else "one"
    verb = "sent" if wanted == "send" else "received"
    start = f"{roll.place_name(first)} waits in {words.operation(wait)}{tagged}{words.at(wait.site)}"
    if other is not None and other.kind == "p2p" and other.peer == first:
        both_send = not is_receive(wait) and not is_receive(other)
        if both_send or (is_receive(wait) and is_receive(other)):
            verb = "send" if both_send else "receive"
            rest = f"and rank {peer} in {words.operation(other)}{words.at(other.site)}: both {verb}, nobody answers"
        else:
            rest = f"but rank {peer} is in {words.operation(other)} with tag {other.tag or 0}{words.at(other.site)}: "
            rest += f"the tags differ ({wait.tag or 0} and {other.tag or 0})"
    elif standing is not None and not standing.alive and standing.ending == "left":
        rest = f"but rank {peer} has {verb} only {done} and has ended"
    elif other is not None:
        rest = f"but rank {peer} has {verb} only {done} and waits in {words.operation(other)}{words.at(other.site)}"
    else:
        rest = f"but rank {peer} has {verb} only {done}"
    pair = {first, *culprits}
    circle = any(pair <= set(cycle) for cycle in graph.cycles)
    return Draft(
        pitfall="unmatched-send-recv",
        culprits=culprits,
        confidence=0.9 if circle or (standing is not None and not standing.alive) else 0.75,
        proven=circle or (standing is not None and not standing.alive),
        sentence=f"{start}, {rest}",
        why=f"A send and a receive meet only if both sides make the call with the same peer and tag. This is {nth} of "
        f"its kind for rank {first}; rank {peer} has made {done} that would answer.",
        where=wait.site,
        waiting=tuple(rank for rank in graph.waiting if rank not in culprits),
        rivals=(
            Rival("uneven-steps", 0.15, "Compare the number of rounds each side makes: one may simply do one less."),
        ),
        evidence=tuple(
            Evidence("record", f"waits in {words.operation(w)} (tag {w.tag or 0}){words.at(w.site)}", rank,
                     roll.host(rank), w.since)
            for rank in sorted(pair)
            if rank in roll.standings and (w := roll.standings[rank].wait) is not None
        ),
        involved=tuple(sorted(pair)),
    )  # fmt: skip
