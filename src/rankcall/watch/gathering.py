"""Puts a snapshot together: records, stacks, flight recorders, /proc, log tails and the user's source lines."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from rankcall.diagnose.readers.flight_recorder import Dump, Pending, pending_by_group
from rankcall.diagnose.readers.log_tail import log_tail
from rankcall.diagnose.readers.records import SlotView, process_from_record, thread_from_slot
from rankcall.snapshot import (
    Child,
    Exit,
    Frame,
    Group,
    PortHolder,
    Process,
    Thread,
    Wait,
)
from rankcall.watch import processes
from rankcall.watch.asking import Asked
from rankcall.watch.looks import Look

Stacks = Mapping[Asked, tuple[tuple[Frame, ...], ...]]
_MOST_SOURCE = 256 * 1024
_MOST_SOURCES = 3 << 20
_CPP_PHASES = ("forward", "evaluate", "backward", "optimizer", "idle", "collective", "init")


def process_of(
    look: Look,
    stacks: Stacks,
    dumps: Mapping[Asked, Dump],
    exits: Mapping[int, Exit],
    logs: Sequence[Path],
    launcher_rank: int | None = None,
) -> Process:
    """What is known of one recorded process: its record, and what can be seen of it from outside."""
    said = process_from_record(look.record)
    pending = pending_by_group(dumps[look.asked]) if look.asked in dumps else []
    groups = _with_progress(list(said.groups), pending)
    return msgspec.structs.replace(
        said,
        host=said.host or socket.gethostname(),
        launcher_rank=said.launcher_rank if launcher_rank is None else launcher_rank,
        state="gone" if look.gone else (look.stat.state if look.stat else "unknown"),
        busy=look.busy,
        blocked_in=None if look.gone else processes.blocked_in(look.pid),
        threads=(
            *_threads(look, groups, pending, stacks.get(look.asked, ())),
            *_silent_threads(stacks.get(look.asked, ())),
        ),
        groups=tuple(groups),
        last_change=look.changed_at,
        exit=exits.get(look.pid) or (Exit() if look.gone else None),
        log_tail=log_tail(logs),
    )


def _threads(
    look: Look, groups: list[Group], pending: list[Pending], stacks: tuple[tuple[Frame, ...], ...]
) -> Iterable[Thread]:
    main = look.main
    for place, slot in enumerate(look.slots):
        is_main = slot is main
        said = thread_from_slot(look.record, slot, groups)
        yield msgspec.structs.replace(
            said,
            name=_thread_name(look.pid, slot.thread),
            main=is_main,
            wait=said.wait or (_wait_in_cpp(slot, look, groups, pending) if is_main else None),
            stable_for=look.slot_quiet.get(place, 0.0),
            stack=stacks[0] if is_main and stacks else (),
            busy=look.main_busy if is_main else None,
        )


def _silent_threads(stacks: tuple[tuple[Frame, ...], ...]) -> Iterable[Thread]:
    """Threads of the program's own that have not recorded anything yet, but run its code: they may act at any time.
    Those that have are here a second time, which does no harm: a stack is all that is said of them."""
    for stack in stacks[1:]:
        if any(_users_own(frame.file) for frame in stack):
            yield Thread(tid=0, name="another thread of the program", main=False, stack=stack)


def _wait_in_cpp(slot: SlotView, look: Look, groups: list[Group], pending: list[Pending]) -> Wait | None:
    """The operation a thread waits for inside C++, where no hook sees it: the oldest one that its flight recorder
    holds unfinished, if the thread does nothing meanwhile."""
    if look.gone or slot.phase not in _CPP_PHASES or (look.main_busy or 0.0) > 0.2:
        return None
    candidates = [state for state in pending if state.oldest is not None]
    if not candidates or look.quiet < 0.3:
        return None
    state = min(candidates, key=lambda item: item.oldest.time_created_ns if item.oldest else 0)
    entry = state.oldest
    if entry is None:
        return None
    group = _group_named(groups, state)
    backend = entry.backend or (group.backend if group else "")
    return Wait(
        kind="collective" if backend == "gloo" else "device",
        op=entry.op,
        group=group.key if group else state.name,
        backend=backend,
        seq=entry.collective_seq_id,
        outer=slot.phase,
        numel=entry.numel,
        dtype=entry.input_dtypes[0].lower() if entry.input_dtypes else None,
        site=look.record.site(slot.phase_site),
        since=entry.time_created_ns / 1e9 if entry.time_created_ns else slot.since,
        source="flight-recorder",
    )


def _group_named(groups: list[Group], state: Pending) -> Group | None:
    """The recorded group of a dump's: names repeat after destroy and init again, so the latest one counts."""
    named = [group for group in groups if group.name == state.name]
    return named[-1] if named else None


def _with_progress(groups: list[Group], pending: list[Pending]) -> list[Group]:
    latest: dict[str, Pending] = {}
    for state in pending:
        if state.name not in latest or state.pg_id >= latest[state.name].pg_id:
            latest[state.name] = state
    result = []
    for place, group in enumerate(groups):
        progress = latest.get(group.name)
        is_last = all(other.name != group.name for other in groups[place + 1 :])
        if progress is None or not is_last:
            result.append(group)
            continue
        enqueued = max(progress.enqueued, group.enqueued or 0)
        result.append(
            msgspec.structs.replace(group, enqueued=enqueued, started=progress.started, finished=progress.finished)
        )
    return result


def unrecorded(
    stacks: tuple[tuple[Frame, ...], ...],
    pid: int,
    rank: int,
    local_rank: int | None,
    attempt: int,
    world_size: int | None,
    exit_: Exit | None,
    logs: Sequence[Path],
    idle: float,
) -> Process:
    """A started rank without a record: its stack from outside, and /proc. It is taken to be in the default group:
    nothing says otherwise."""
    stat = processes.read_stat(pid)
    group = Group(
        key=f"0-{(world_size or 1) - 1}#0", name="0", members=tuple(range(world_size or 1)), description="assumed"
    )
    stack = stacks[0] if stacks else ()
    thread = Thread(tid=pid, main=True, stack=stack, wait=_wait_in_stack(stack, group), stable_for=idle, busy=0.0)
    return Process(
        host=socket.gethostname(),
        pid=pid,
        start_time=float(stat.start) if stat else 0.0,
        attempt=attempt,
        launcher_rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        recorded=False,
        initialized="done" if thread.wait is not None else "no",
        state="gone" if stat is None or exit_ is not None else stat.state,
        threads=(thread,) if stack else (),
        groups=(group,) if stack else (),
        blocked_in=processes.blocked_in(pid),
        exit=exit_,
        command=processes.command_line(pid),
        log_tail=log_tail(logs),
        notes=("not recorded: its Python ignored the environment, or it is no Python",),
    )


def _wait_in_stack(stack: tuple[Frame, ...], group: Group) -> Wait | None:
    """The operation that a stack is inside of: the outermost function of torch.distributed below the user's line."""
    operation = ""
    for frame in stack:
        if frame.file.endswith("torch/distributed/distributed_c10d.py"):
            operation = frame.function
        elif operation and _users_own(frame.file):
            return Wait(kind="collective", op=operation, group=group.key, site=frame, source="stack")
    return None


def with_children(process: Process, stats: dict[int, processes.Stat], stacks: Stacks) -> Process:
    """The process with those below it, if it lives."""
    if process.state == "gone" or process.pid not in stats:
        return process
    return msgspec.structs.replace(process, children=_children_of(process.pid, stats, stacks))


def _children_of(pid: int, stats: dict[int, processes.Stat], stacks: Stacks) -> tuple[Child, ...]:
    """The processes below a rank; DataLoader workers by the name torch gives them."""
    found = []
    own = processes.command_line(pid)
    for child in processes.descendants(pid, stats)[:64]:
        stat = stats[child]
        name = processes.process_name(child)
        command = processes.command_line(child)
        text = " ".join(command)
        if name == "pt_data_worker":
            kind = "loader-worker"
        elif "resource_tracker" in text or "forkserver" in text:
            kind = "other"
        elif command == own or "multiprocessing" in text or "python" in text:
            kind = "python"
        else:
            kind = "other"
        own_stacks = stacks.get((child, stat.start), ())
        found.append(
            Child(
                pid=child,
                kind=kind,
                state=stat.state,
                name=name or (command[0] if command else ""),
                stack=own_stacks[0] if own_stacks else (),
                blocked_in=processes.blocked_in(child),
            )
        )
    return tuple(found)


def _thread_name(pid: int, thread: int) -> str:
    try:
        return Path(f"/proc/{pid}/task/{thread}/comm").read_text().strip()
    except OSError:
        return ""


# --- the user's own files -----------------------------------------------------------------------------------------


def sources_of(found: Iterable[Process]) -> dict[str, str]:
    """The text of the user's own files that any site or frame points into, so that it can be shown elsewhere."""
    names: dict[str, None] = {}
    for process in found:
        for frame in _frames(process):
            names.setdefault(frame.file)
    sources: dict[str, str] = {}
    total = 0
    for name in names:
        if not _users_own(name):
            continue
        try:
            if os.path.getsize(name) > _MOST_SOURCE:
                continue
            text = Path(name).read_text("utf-8", "replace")
        except (OSError, ValueError):
            continue
        total += len(text)
        if total > _MOST_SOURCES:
            break
        sources[name] = text
    return sources


def _frames(process: Process) -> Iterable[Frame]:
    for thread in process.threads:
        yield from thread.stack
        if thread.phase_site is not None:
            yield thread.phase_site
        if thread.wait is not None and thread.wait.site is not None:
            yield thread.wait.site
    for child in process.children:
        yield from child.stack
    for event in process.ring[-512:]:
        if event.site is not None:
            yield event.site
    note = process.exit_note
    if note is not None:
        if note.site is not None:
            yield note.site
        if note.exception is not None:
            yield from note.exception.frames
    for handled in process.handled:
        yield from handled.frames


_STDLIB = os.path.dirname(os.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_DEMO = os.path.join(_OURS, "demo") + os.sep


def _users_own(name: str) -> bool:
    if not os.path.isabs(name) or "/site-packages/" in name or "/dist-packages/" in name:
        return False
    return name.startswith(_DEMO) or not name.startswith((_STDLIB, _OURS))


# --- ports --------------------------------------------------------------------------------------------------------


def port_holders(wanted: Iterable[int]) -> tuple[PortHolder, ...]:
    """Who listens on these ports of this host; pid None where we may not see it."""
    ports = set(wanted)
    found: dict[int, PortHolder] = {}
    if not ports:
        return ()
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return ()
    for connection in connections:
        address = connection.laddr
        if connection.status == psutil.CONN_LISTEN and address and address.port in ports:
            command = " ".join(processes.command_line(connection.pid)) if connection.pid else ""
            found[address.port] = PortHolder(address.port, connection.pid, command[:300])
    return tuple(found[port] for port in sorted(found))


def port_of(master: str) -> int | None:
    """The port at the end of "host:port" or "tcp://host:port"."""
    text = master.rpartition(":")[2].partition("?")[0].strip("/")
    return int(text) if text.isdigit() and int(text) < 65536 else None
