"""What each rank waits in: seen by the recorder, read off a device's queue, or inferred from where it stood."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import msgspec

from rankcall.diagnose.frames import code_of, innermost_user
from rankcall.diagnose.roll import Roll, Standing
from rankcall.snapshot import Event, Group, Process, Wait

IDLE_BUSY = 0.05  # below this share of a core a thread is asleep
_DEVICE_BACKENDS = ("nccl", "rccl", "hccl", "xccl", "ucc", "mccl", "cncl")
_IN_TORCH = re.compile(r"/torch/")
# Lines at which the host stops until the device has done all it was given.
_SYNCHRONISES = re.compile(r"\.(item|tolist|cpu|numpy|nonzero)\(|synchronize\(|\.to\([\"']cpu|isnan|isfinite")
# What a rank in C++ looks like from its phase alone, when nobody could be asked.
_INFERRED_PHASES = frozenset({"backward", "forward", "evaluate", "optimizer"})
_PHASES_WITHOUT_CALL = frozenset({"idle", "collective", "data", "init", "exit", "save", "load", "compile", "optimizer"})
_ENTERED = frozenset({"collective", "send", "recv", "wait", "forward", "eval-forward", "backward", "new-group", "init"})


def with_waits(roll: Roll) -> Roll:
    """The same roll with every standing's wait filled in."""
    sources = roll.snapshot.sources
    return dataclasses.replace(
        roll, standings={rank: _place(_add(standing, sources), sources) for rank, standing in roll.standings.items()}
    )


def _place(standing: Standing, sources: Mapping[str, str]) -> Standing:
    """What the flight recorder saw has no call site, and a phase for a name: take them from the stack."""
    wait = standing.wait
    if wait is None:
        return standing
    if wait.kind == "collective" and not wait.group:
        # monitored_barrier meets over the store and has no number; it is a call of the whole group all the same.
        group = main_group(standing.process)
        wait = msgspec.structs.replace(wait, group=group.key if group is not None else "")
    if wait.outer in _PHASES_WITHOUT_CALL:
        wait = msgspec.structs.replace(wait, outer="")
    if wait.site is None:
        raised = standing.exception.frames if standing.exception is not None else ()
        stack = standing.thread.stack or tuple(reversed(raised))
        site = innermost_user(stack, sources)
        wait = msgspec.structs.replace(wait, site=site) if site is not None else wait
    return standing if wait is standing.wait else dataclasses.replace(standing, wait=wait)


def _add(standing: Standing, sources: Mapping[str, str]) -> Standing:
    thread = standing.thread
    if standing.alive or standing.innocent_end:
        if thread.wait is not None:
            return dataclasses.replace(standing, wait=thread.wait)
        if standing.process.dump is not None:
            return standing  # the dump shows every operation, and none that it waits in
        queued = _device_wait(standing)
        if queued is not None:
            return dataclasses.replace(standing, wait=queued)
        synchronising = _synchronisation(standing, sources)
        if synchronising is not None:
            return dataclasses.replace(standing, wait=synchronising, likely=True)
    if standing.ending in ("echo", "abort"):
        wait = _last_entered(standing)
        return dataclasses.replace(standing, wait=wait, likely=wait is not None and wait.seq is None)
    if standing.alive or standing.ending == "killed":
        wait = _inferred(standing)
        return dataclasses.replace(standing, wait=wait, likely=wait is not None)
    return standing


def main_group(process: Process) -> Group | None:
    """The group that a wrapped model most likely uses: the largest one in force."""
    groups = [group for group in process.groups if not group.destroyed and group.members]
    return max(groups, key=lambda group: (len(group.members), group.incarnation), default=None)


def is_device(backend: str) -> bool:
    """True for a backend whose operations are queued on a device and awaited later."""
    return any(name in backend.lower() for name in _DEVICE_BACKENDS)


def _device_wait(standing: Standing) -> Wait | None:
    """Queued operations that the device has not finished, while the host does not move either."""
    process, thread = standing.process, standing.thread
    if standing.alive and not standing.settled:
        return None
    if thread.phase in ("data", "save", "load", "init", "compile"):
        return None
    pending = [
        group
        for group in process.groups
        if is_device(group.backend)
        and not group.destroyed
        and group.enqueued is not None
        and group.finished is not None
        and group.finished < group.enqueued
    ]
    # The oldest of several queues cannot be told from numbers: the one with the most members is most likely it.
    group = max(pending, key=lambda g: len(g.members), default=None)
    if group is None or group.finished is None:
        return None
    seq = group.finished + 1
    event = event_of(process, group.key, seq)
    return Wait(
        kind="device",
        op=event.op if event is not None else "",
        outer=event.outer if event is not None else "",
        group=group.key,
        backend=group.backend,
        seq=seq,
        numel=event.numel if event is not None else None,
        dtype=event.dtype if event is not None else None,
        reduce_op=event.reduce_op if event is not None else None,
        root=event.root if event is not None else None,
        site=event.site if event is not None else None,
        source="device",
    )


def _synchronisation(standing: Standing, sources: Mapping[str, str]) -> Wait | None:
    """No dump tells what the device has finished, but the host stands at a line that waits for the device."""
    process = standing.process
    if standing.alive and not standing.settled:
        return None
    group = main_group(process)
    if group is None or not is_device(group.backend) or group.finished is not None or not group.enqueued:
        return None
    place = innermost_user(standing.thread.stack, sources)
    if place is None or not _SYNCHRONISES.search(code_of(place, sources)):
        return None
    event = event_of(process, group.key, group.enqueued)
    return Wait(
        kind="device", op=event.op if event is not None else "", group=group.key, backend=group.backend,
        seq=group.enqueued, site=place, source="stack",
    )  # fmt: skip


def event_of(process: Process, group: str, seq: int) -> Event | None:
    """The ring's entry for an operation, if it still holds it."""
    for event in reversed(process.ring):
        if event.kind == "collective" and event.group == group and event.seq == seq:
            return event
    return None


def _last_entered(standing: Standing) -> Wait | None:
    """The call that an echo came out of: the last one that was entered."""
    for event in reversed(standing.process.ring):
        if event.kind == "init" and standing.process.initialized == "done":
            return _unrecorded_call(standing)
        if event.kind in _ENTERED:
            return _wait_from(event, standing.process)
    return None


def _unrecorded_call(standing: Standing) -> Wait | None:
    """It failed after init_process_group, in a call that is not recorded: wrapping a model, say."""
    group = main_group(standing.process)
    if group is None:
        return None
    return Wait(
        kind="collective", op="", outer="a call of torch", group=group.key, backend=group.backend, source="stack"
    )  # fmt: skip


def _wait_from(event: Event, process: Process) -> Wait:
    if event.kind in ("send", "recv") or (event.kind == "wait" and event.peer is not None):
        kind, op = "p2p", event.op or event.kind
    elif event.kind == "new-group":
        kind, op = "new-group", "new_group"
    elif event.kind == "init":
        kind, op = "init", "init_process_group"
    else:
        kind, op = "collective", event.op
    group = event.group
    seq = event.seq if event.kind in ("collective", "wait") else None
    if not group and event.kind in ("forward", "eval-forward", "backward"):
        main = main_group(process)
        group = main.key if main is not None else ""
    return Wait(
        kind=kind,  # type: ignore[arg-type]
        op=op,
        group=group,
        backend=process.backend,
        seq=seq,
        outer=event.outer or (event.kind if event.kind in ("forward", "eval-forward", "backward") else ""),
        numel=event.numel,
        dtype=event.dtype,
        reduce_op=event.reduce_op,
        root=event.root,
        peer=event.peer,
        tag=event.tag,
        nth=event.nth,
        site=event.site,
        source="record",
    )


def _inferred(standing: Standing) -> Wait | None:
    """A rank that sleeps inside torch in the middle of a step: most likely a collective started in C++."""
    thread, process = standing.thread, standing.process
    if thread.phase not in _INFERRED_PHASES:
        return None
    if standing.alive and not standing.settled:
        return None
    if thread.busy is not None and thread.busy >= IDLE_BUSY:
        return None
    if thread.stack and not _IN_TORCH.search(thread.stack[0].file) and not _calls_into_torch(standing):
        return None
    group = main_group(process)
    if group is None or len(group.members) < 2:
        return None
    return Wait(
        kind="collective",
        op="",
        outer="forward" if thread.phase == "evaluate" else thread.phase,
        group=group.key,
        backend=group.backend,
        seq=None,
        site=thread.phase_site,
        since=thread.phase_since,
        source="stack",
    )


def _calls_into_torch(standing: Standing) -> bool:
    """The innermost Python frame is the user's own line that began the phase: what blocks is in C below it."""
    thread = standing.thread
    site = thread.phase_site
    return site is not None and thread.stack[0].file == site.file and thread.stack[0].line == site.line
