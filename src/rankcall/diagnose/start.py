"""Ranks that do not line up: wrong counts, doubled ranks, a store that nobody serves, a rank that never came."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from rankcall.diagnose import ports, words
from rankcall.diagnose.doing import action
from rankcall.diagnose.drafts import Draft
from rankcall.diagnose.frames import code_of
from rankcall.diagnose.graph import Graph
from rankcall.diagnose.roll import Roll, Standing
from rankcall.diagnose.roots import place_of
from rankcall.findings import Evidence, Rival
from rankcall.snapshot import Frame, Process


def judge(roll: Roll, graph: Graph) -> Draft | None:
    """A verdict if the ranks could not be lined up, whether they still wait or gave up."""
    return (
        _duplicates(roll)
        or (world_sizes(roll) if graph.blockers or roll.over else None)
        or _master_port(roll)
        or _taken_port(roll)
        or _missing(roll, graph)
    )


def _in_init(standing: Standing) -> bool:
    return standing.process.initialized == "entered" and (standing.wait is None or standing.wait.kind == "init")


def _init_site(roll: Roll, standing: Standing) -> Frame | None:
    if standing.wait is not None and standing.wait.site is not None:
        return standing.wait.site
    event = next((e for e in standing.process.ring if e.kind == "init" and e.site is not None), None)
    return event.site if event is not None else place_of(roll, standing)


def _duplicates(roll: Roll) -> Draft | None:
    doubled = {rank: claimed for rank, processes in roll.claims.items() if (claimed := _together(rank, processes))}
    if not doubled:
        return None
    ranks = tuple(sorted(doubled))
    first, claimed = ranks[0], doubled[ranks[0]]
    pids = words.sentence_list([f"process {p.pid} on {p.host}" for p in claimed[:4]])
    given = sorted({p.launcher_rank for p in claimed if p.launcher_rank is not None})
    if len(given) > 1:
        script = f" The launcher had given them {words.ranks_text(given)}: the script overrides it."
    else:
        script = f" They were started with the same RANK, {given[0]}." if given else ""
    more = f" (and so for {words.ranks_text(ranks[1:])})" if len(ranks) > 1 else ""
    return Draft(
        pitfall="duplicate-rank", culprits=ranks, confidence=0.95, proven=True,
        sentence=f"{len(claimed)} processes claim rank {first}: {pids}{more}; init_process_group can never complete",
        why=f"Every process needs a rank of its own.{script}",
        where=_init_site(roll, roll.standings[first]),
        hosts=tuple(dict.fromkeys(p.host for p in claimed)),
        waiting=tuple(other for other in roll.standings if other not in doubled),
        fix=("Take the rank from the launcher: do not set RANK, and pass no rank= to init_process_group.",)
        if len(given) > 1
        else (f"Give every process a RANK of its own; look where {first} is given out twice.",),
        evidence=tuple(
            Evidence("record", f"process {p.pid} claims rank {rank}, launched as {p.launcher_rank}", rank, p.host)
            for rank, processes in list(doubled.items())[:4]
            for p in processes[:4]
        ),
    )  # fmt: skip


def _together(rank: int, processes: Sequence[Process]) -> list[Process]:
    """The processes that claimed this rank at one time in one job, if they are more than one.

    Who is through init_process_group has met its group, and a process that ended well is not there any more; those
    that meet at another address are another job (one launcher after the other in one script, or one inside a rank).
    """
    claimed = [p for p in processes if p.claimed_rank == rank and p.initialized != "no"]
    claimed = [p for p in claimed if p.exit is None or p.exit_note is not None or p.exit.code != 0]
    claimed = [p for p in claimed if not (p.exit_note is not None and p.exit_note.kind == "finish")]
    meeting: dict[tuple[str, int | None], list[Process]] = {}
    for process in claimed:
        meeting.setdefault((process.master, process.world_size), []).append(process)
    together = max(meeting.values(), key=len, default=[])
    return together if len(together) > 1 and any(p.initialized == "entered" for p in together) else []


def _claims(roll: Roll) -> dict[int, int]:
    return {
        rank: standing.process.world_size
        for rank, standing in roll.standings.items()
        if standing.process.world_size is not None and standing.process.initialized != "no"
    }


def world_sizes(roll: Roll) -> Draft | None:
    """A verdict if the ranks disagree on the world size, or all expect another one than was launched."""
    claims = _claims(roll)
    if not claims:
        return None
    sizes = Counter(claims.values())
    # Where the ranks were not started by this launcher, the job's size is only what they themselves say.
    by_hand = len(sizes) > 1 and not any(s.process.uses_agent_store for s in roll.standings.values())
    launched = roll.snapshot.world_size if not by_hand else None
    right = launched if launched is not None else _likeliest_size(sizes, len(roll.standings))
    culprits = tuple(sorted(rank for rank, size in claims.items() if size != right))
    if not culprits:
        return None
    first = roll.standings[culprits[0]]
    event = next((e for e in first.process.ring if e.kind == "init" and e.site is not None), None)
    said = words.sentence_list(
        [
            f"{words.ranks_text(ranks)} {words.verb(ranks, 'says', 'say')} {size}"
            for size in sorted(sizes)
            if (ranks := [rank for rank, claimed in claims.items() if claimed == size])
        ]
    )
    agree = len(sizes) == 1
    init = event.site if event is not None else _init_site(roll, first)
    was = f"{launched} were launched" if launched is not None else f"{len(roll.standings)} processes have come"
    return Draft(
        pitfall="world-size-mismatch", culprits=culprits, confidence=0.85 if agree else 0.95, proven=True,
        sentence=f"the ranks do not agree on the world size: {said}; {was}"
        if not agree
        else f"all ranks say that the world size is {claims[culprits[0]]}, but {was}",
        why="A group is complete when as many ranks have come as each of them expects.",
        where=_line_with(roll, init, "WORLD_SIZE") or init,
        waiting=tuple(rank for rank in roll.standings if rank not in culprits),
        fix=("Take the world size from the launcher: do not set WORLD_SIZE, and pass no world_size= to "
             "init_process_group.",),
        rivals=(Rival("missing-rank", 0.3, "Were more processes meant to be started elsewhere?"),) if agree else (),
        evidence=tuple(
            Evidence("record", f"claims world size {size}", rank, roll.host(rank))
            for rank, size in list(claims.items())[:16]
        ),
    )  # fmt: skip


def _likeliest_size(sizes: Counter[int], processes: int) -> int:
    """The size that most ranks say; of two that as many say, the one that fits the number of processes."""
    return max(sizes, key=lambda size: (sizes[size], size == processes, -size))


def _same_master(process: Process) -> bool:
    return ports.port_of(process.master) == ports.port_of(process.launcher_master)


def _master_port(roll: Roll) -> Draft | None:
    """Clients of a store that the launcher does not serve: the script wrote over MASTER_PORT."""
    caught = [
        s
        for s in roll.standings.values()
        if s.process.uses_agent_store
        and s.process.initialized == "entered"
        and s.process.master
        and s.process.launcher_master
        and ports.port_of(s.process.master) is not None
        and not _same_master(s.process)
    ]
    if not caught:
        return None
    first = caught[0]
    port, right = ports.port_of(first.process.master), ports.port_of(first.process.launcher_master)
    if ports.holder_of(roll, port) is not None:
        return None  # somebody answers: see _taken_port
    ranks = tuple(sorted(s.rank for s in caught))
    site = _init_site(roll, first)
    setting = _line_with(roll, site, "MASTER_PORT")
    return Draft(
        pitfall="fixed-master-port", culprits=ranks, confidence=0.95, proven=True,
        sentence=f"{words.ranks_text(ranks)} {words.verb(ranks, 'looks', 'look')} for the store at port {port}, but "
        f"the launcher serves it at port {right}; nobody listens there{_set_at(setting)}",
        why="Under torchrun every rank is a client of the launcher's store. The script has changed MASTER_PORT, so "
        "they wait for a server that nobody starts.",
        where=setting or site,
        waiting=(),
        fix=("Do not set MASTER_PORT in the script; give the port to the launcher (`--master-port`).",),
        evidence=tuple(
            Evidence("record", f"uses {s.process.master}, the launcher had set {s.process.launcher_master}", s.rank,
                     s.process.host)
            for s in caught[:8]
        ),
    )  # fmt: skip


def _set_at(setting: Frame | None) -> str:
    return f" (set{words.at(setting)})" if setting is not None else ""


def _line_with(roll: Roll, near: Frame | None, name: str) -> Frame | None:
    """The only line of the rank's own file that sets this environment variable, if there is exactly one."""
    if near is None:
        return None
    sets = re.compile(rf"""\[["']{name}["']\]\s*=[^=]|(setdefault|putenv)\(\s*["']{name}["']""")
    text = roll.snapshot.sources.get(near.file, "")
    lines = [number for number, line in enumerate(text.split("\n"), 1) if sets.search(line)]
    return Frame(near.file, lines[0]) if len(lines) == 1 else None


def _taken_port(roll: Roll) -> Draft | None:
    """Ranks wait in init at a port that a process outside the job holds."""
    pids = {s.process.pid for s in roll.standings.values()}
    for standing in roll.standings.values():
        if not _in_init(standing) or not standing.process.master:
            continue
        port = ports.port_of(standing.process.master)
        holder = ports.holder_of(roll, port)
        if holder is None or holder.pid is None:
            continue
        if _same_master(standing.process) and standing.process.uses_agent_store:
            continue  # the launcher's own store
        if holder.pid in pids and not standing.process.uses_agent_store:
            continue  # the store that rank 0 serves
        ranks = tuple(sorted(s.rank for s in roll.standings.values() if _in_init(s)))
        return Draft(
            pitfall="port-in-use", culprits=(min(ranks),), confidence=0.85, proven=False,
            sentence=f"port {port}, where {words.ranks_text(ranks)} {words.verb(ranks, 'meets', 'meet')}, is held by "
            f"{ports.holder_text(holder)}, which is not the store of this job",
            why="The ranks connect to a process that is not their store and wait for its answer.",
            where=_init_site(roll, roll.standings[min(ranks)]),
            waiting=ranks,
            fix=ports.fixes(holder),
            rivals=(Rival("fixed-master-port", 0.3, "Is the port written into the script?"),),
            evidence=(Evidence("ports", f"port {port}: {ports.holder_text(holder)}", None, standing.process.host),),
        )  # fmt: skip
    return None


def _missing(roll: Roll, graph: Graph) -> Draft | None:
    """Some ranks wait in init_process_group for ranks that have not entered it."""
    waiting = tuple(sorted(s.rank for s in roll.standings.values() if _in_init(s)))
    if not waiting:
        return None
    absent = tuple(
        rank
        for rank in range(roll.world_size)
        if rank not in roll.standings or roll.standings[rank].process.initialized == "no"
    )
    if not absent:
        return None
    present = [roll.standings[rank] for rank in absent if rank in roll.standings]
    if not present:
        return _nobody_has(roll, waiting, absent)
    first = present[0]
    place = place_of(roll, first) or _way_past_init(roll, waiting[0])
    return Draft(
        pitfall="missing-rank", culprits=absent, confidence=0.9, proven=not first.present,
        sentence=f"{_who(roll, absent)} {words.verb(absent, 'has', 'have')} not come to init_process_group: "
        f"{_doing(roll, first, place)}; {words.ranks_text(waiting)} {words.verb(waiting, 'waits', 'wait')} for "
        f"{words.verb(absent, 'it', 'them')}",
        why=f"{len(waiting)} of {roll.world_size} ranks {words.verb(waiting, 'has', 'have')} come; init_process_group "
        "returns when all have.",
        where=place,
        waiting=waiting,
        rivals=(Rival("slow-preprocessing", 0.3, "Does it come by itself, minutes later?"),) if first.present else (),
        evidence=tuple(
            Evidence("process", f"process {s.process.pid}: {_doing(roll, s, place_of(roll, s))}", s.rank,
                     s.process.host)
            for s in present[:8]
        ),
        involved=(*waiting, *absent),
    )  # fmt: skip


def _way_past_init(roll: Roll, rank: int) -> Frame | None:
    """The line before init_process_group that can lead past it, if there is exactly one."""
    site = _init_site(roll, roll.standings[rank])
    if site is None:
        return None
    spot = roll.program.spot(site)
    jumps = roll.program.jumps(site.file, spot.first + 1, site.line - 1)
    leaving = [jump for jump in jumps if jump.kind in ("return", "exit") and jump.guard is not None]
    return Frame(site.file, leaving[0].line, spot.function) if len(leaving) == 1 else None


def _who(roll: Roll, ranks: Sequence[int]) -> str:
    return roll.place_name(ranks[0]) if len(ranks) == 1 else words.ranks_text(ranks)


def _doing(roll: Roll, standing: Standing, place: Frame | None) -> str:
    if not standing.present:
        note = standing.process.exit_note
        at = words.at(note.site) if note is not None else ""
        return f"process {standing.process.pid} has ended{at}"
    where = f" at {words.place(place)}" if place is not None else ""
    code = code_of(place, roll.snapshot.sources)
    return f"process {standing.process.pid} {action(code, standing.process.blocked_in)}{where}"


def _nobody_has(roll: Roll, waiting: tuple[int, ...], absent: tuple[int, ...]) -> Draft:
    first = roll.standings[waiting[0]]
    return Draft(
        pitfall="missing-rank", culprits=absent, confidence=0.85, proven=False,
        sentence=f"no process has come as {words.ranks_text(absent)}: {len(waiting)} of {roll.world_size} ranks wait "
        "in init_process_group",
        why="The world size counts ranks that nobody started here, or that cannot reach the master.",
        where=_init_site(roll, first),
        waiting=waiting,
        rivals=(Rival("world-size-mismatch", 0.4, "Is WORLD_SIZE, or --nnodes times --nproc-per-node, right?"),
                Rival("master-unreachable", 0.3, "Does the master's port answer from the missing host?")),
        evidence=(Evidence("roll call", f"{len(roll.standings)} processes, world size {roll.world_size}"),),
    )  # fmt: skip
