"""What to say when ranks stand still and nothing tells why: what is known, and which command would tell more."""

from __future__ import annotations

from rankcall.diagnose import words
from rankcall.diagnose.graph import Graph
from rankcall.diagnose.roll import Roll
from rankcall.diagnose.waits import is_device


def unknown(roll: Roll, graph: Graph) -> str:
    """One or two sentences, or an empty text for a job in which nobody stands still."""
    waiting = graph.waiting
    if roll.snapshot.origin == "files" and (not waiting or not roll.snapshot.stalled):
        return _of_files(roll, graph)
    if not waiting:
        return ""
    places = dict.fromkeys(
        f"{words.operation(wait)}{words.at(wait.site)}"
        for rank in waiting
        if (wait := roll.standings[rank].wait) is not None
    )
    keys = {(wait.group, wait.seq, wait.peer) for rank in waiting if (wait := roll.standings[rank].wait) is not None}
    where = words.sentence_list(list(places)[:3])
    who = words.ranks_text(waiting)
    first = roll.standings[waiting[0]].process
    if len(places) == len(keys) == 1 and len(waiting) == len(roll.standings) and len(waiting) > 1:
        return (
            f"{who} are all in {where} and it does not move: the ranks agree, so the trouble lies below them. "
            f"{_network_command(first.backend)}"
        )
    return f"{who} {words.verb(waiting, 'waits', 'wait')} in {where}. {_stack_command(roll, waiting[0])}"


def _of_files(roll: Roll, graph: Graph) -> str:
    """Why dumps or stacks show nothing wrong."""
    snapshot = roll.snapshot
    if graph.waiting:
        return (
            f"The newest operation began {words.duration(snapshot.quiet_for)} before the files were written, which is "
            "no longer than this job pauses anyway: it may be moving. Take dumps again in a minute, and read those."
        )
    if any(standing.process.dump is not None for standing in roll.standings.values()):
        return "Every operation that the dumps show is done: no rank waits in one."
    return "No stack stands in an operation of a process group."


def _network_command(backend: str) -> str:
    if is_device(backend):
        return "Run again with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET: its last lines name the link that failed."
    return "`ss -tnpi` on each host shows which connection has unsent data or retransmits."


def _stack_command(roll: Roll, rank: int) -> str:
    process = roll.standings[rank].process
    host = f" on {process.host}" if process.host else ""
    return f"`py-spy dump --native --pid {process.pid or 'PID'}`{host} shows what the process does below Python."
