"""Hooks on torch.distributed: who waits in which operation of which group, under c10d's own numbers.

The wrappers replace the functions of `torch.distributed.distributed_c10d` right after that module was executed, so
every later import (and torch.compile's table of collectives) sees the wrapped ones.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rankcall.record import layout
from rankcall.record.recorder import Slot, recorder
from rankcall.record.writer import Writer, now

_COLLECTIVE = layout.WAIT["collective"]
_P2P = layout.WAIT["p2p"]
_NEW_GROUP = layout.WAIT["new-group"]
_INIT = layout.WAIT["init"]
_NO_WAIT = layout.WAIT["none"]
_K = layout.KIND
_PHASE_COLLECTIVE = layout.PHASE["collective"]
_PHASE_INIT = layout.PHASE["init"]
_WORKS_KEPT = 4096
_COLLECTIVE_KIND = _K["collective"]
_EVENT_PACK = layout.EVENT.pack_into
_SLOT_PACK = layout.SLOT.pack_into
_COUNT_PACK = layout.COUNTER.pack_into
_EVENTS_AT = layout.COUNTER_INDEX["events"]
_RING_AT, _RING_MASK, _EVENT_SIZE = layout.RING_AT, layout.RING_EVENTS - 1, layout.EVENT_SIZE

# Operation -> the parameter whose elements are counted. The recorded name is the operation's own.
TENSOR_OF = {
    "all_reduce": "tensor",
    "broadcast": "tensor",
    "reduce": "tensor",
    "all_gather": "tensor",
    "all_gather_into_tensor": "input_tensor",
    "all_gather_single": "input_tensor",
    "_all_gather_base": "input_tensor",
    "gather": "tensor",
    "scatter": "tensor",
    "reduce_scatter": "output",
    "reduce_scatter_tensor": "output",
    "reduce_scatter_single": "output",
    "_reduce_scatter_base": "output",
    "all_to_all_single": "input",
    "all_to_all": "input_tensor_list",
    "all_reduce_coalesced": "tensors",
    "all_gather_coalesced": "input_tensor_list",
    "barrier": "",
}
# These are made of the ones above: only their name and place are noted around them.
OBJECT_OPERATIONS = (
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list",
)  # fmt: skip
POINT_TO_POINT = {
    "send": ("send", "dst"),
    "isend": ("send", "dst"),
    "recv": ("recv", "src"),
    "irecv": ("recv", "src"),
}

_c10d: Any = None
_groups: dict[int, tuple[int, Callable[[], int], tuple[int, ...], Any]] = {}  # by id(pg)
_group_numbers: list[dict[str, object]] = []
_others: dict[int, int] = {}  # by group number: how much of its sequence number was no collective
_made: dict[tuple[tuple[int, ...], str], int] = {}
_default: Any = None
_works: dict[int, tuple[int, int]] = {}  # id(Work) -> (event, site)
_pair_counts: dict[tuple[str, int, int, int], int] = {}
_dtypes: dict[Any, int] = {}
_reduce_ops: dict[int, tuple[int, Any]] = {}
_arguments: dict[str, dict[str, int]] = {}
_calls: list[_Call] = []


def install(module: ModuleType) -> None:
    """Wrap what `distributed_c10d` defines. Names that a torch version lacks are left alone."""
    global _c10d
    _c10d = module
    for name in TENSOR_OF:
        _replace(module, name, _wrap_collective)
    for name in OBJECT_OPERATIONS:
        _replace(module, name, _wrap_object_operation)
    for name in POINT_TO_POINT:
        _replace(module, name, _wrap_point_to_point)
    _replace(module, "monitored_barrier", _wrap_monitored_barrier)
    _replace(module, "init_process_group", _wrap_init)
    _replace(module, "destroy_process_group", _wrap_destroy)
    for name in ("new_group", "split_group"):
        _replace(module, name, _wrap_new_group)
    work = getattr(module, "Work", None)
    if work is not None:
        work.wait = _wrap_work_wait(work.wait)


def _replace(module: ModuleType, name: str, wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(module, name, None)
    if inspect.isfunction(original):
        _arguments[name] = {p: i for i, p in enumerate(inspect.signature(original).parameters)}
        setattr(module, name, wrap(name, original))


def _argument(name: str, parameter: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if parameter in kwargs:
        return kwargs[parameter]
    place = _arguments[name].get(parameter, 99)
    return args[place] if place < len(args) else None


# --- groups -----------------------------------------------------------------------------------------------------


def _group(pg: Any) -> tuple[int, Callable[[], int], tuple[int, ...], Any] | None:
    """(number, sequence-number function, members, pg) of a group; None means the default one. None is returned for
    a group that this rank is not in."""
    global _default
    if pg is None:
        pg = _default
        if pg is None:
            pg = _default = _c10d._get_default_group()
    known = _groups.get(id(pg))
    if known is not None:
        return known
    return None if _c10d._rank_not_in_group(pg) else register_group(pg)


def register_group(pg: Any) -> tuple[int, Callable[[], int], tuple[int, ...], Any]:
    """Give a group its number and write down who its members are."""
    members = tuple(int(rank) for rank in _c10d.get_process_group_ranks(pg))
    backend = str(_c10d.get_backend(pg))
    incarnation = _made.get((members, backend), 0)
    _made[(members, backend)] = incarnation + 1
    number = len(_group_numbers)
    fact: dict[str, object] = {
        "number": number,
        "name": str(getattr(pg, "group_name", "")),
        "description": str(getattr(pg, "group_desc", "")),
        "backend": backend,
        "members": _spans(members),
        "incarnation": incarnation,
    }
    _group_numbers.append(fact)
    known = (number, _sequence_of(pg), members, pg)
    _groups[id(pg)] = known
    if recorder.writer is not None:
        import json

        recorder.writer.intern(("group", number), json.dumps(fact), layout.TAG_GROUP)
    return known


def _sequence_of(pg: Any) -> Callable[[], int]:
    """What answers with c10d's own number of the group's last operation.

    A group of one backend for each device ("cpu:gloo,cuda:nccl" spelled so) may have no default backend to ask; then
    the CPU's is asked, else the accelerator's. Where none answers, the number is unknown.
    """
    import torch

    candidates: list[Callable[[], int]] = [pg._get_sequence_number_for_group]
    for device in ("cpu", "cuda"):
        try:
            candidates.append(pg._get_backend(torch.device(device))._get_sequence_number_for_group)
        except (RuntimeError, AttributeError):
            continue
    for candidate in candidates:
        try:
            candidate()
        except (RuntimeError, AttributeError):
            continue
        return candidate
    return _no_number


def _counts_everything(known: tuple[int, Callable[[], int], tuple[int, ...], Any]) -> bool:
    """Whether the group's number counts sends and receives too. gloo's does, so that the ranks of a pipeline have
    different ones at the same collective; the flight recorder's `collective_seq_id` leaves them out, and so does
    NCCL's number (measured on torch 2.13.0; ProcessGroupNCCL.cpp has a counter of its own for them)."""
    backend = _group_numbers[known[0]]["backend"]
    return "gloo" in str(backend) or str(backend) == "undefined"


def _no_number() -> int:
    return layout.UNKNOWN


def _spans(members: tuple[int, ...]) -> list[list[int]]:
    """Member ranks as [first, last] spans: short for the thousands of a large group."""
    spans: list[list[int]] = []
    for rank in sorted(members):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return spans


def used_gloo() -> bool:
    """Whether this process has been in a group that gloo serves."""
    return any("gloo" in str(fact["backend"]) for fact in _group_numbers)


def sample_groups() -> None:
    """Store every known group's number: what C++ enqueued since shows up in it."""
    writer = recorder.writer
    if writer is None:
        return
    for number, sequence, _, _ in list(_groups.values()):
        try:
            writer.set_group(number, sequence() - _others.get(number, 0))
        except Exception:  # a destroyed group answers with an error; its last number stays
            continue


def sample_default() -> None:
    """Store the default group's number: cheap enough for every hook."""
    if _default is not None and recorder.writer is not None:
        known = _groups.get(id(_default))
        if known is not None:
            recorder.writer.set_group(known[0], known[1]() - _others.get(known[0], 0))


# --- details of one call ----------------------------------------------------------------------------------------


def _shape(value: Any) -> tuple[int, int]:
    """(number of elements, dtype's name number) of a tensor or a list of them; (-1, 0) for what is neither: the
    operation itself will say so."""
    try:
        if isinstance(value, (list, tuple)):
            if not value:
                return 0, 0
            return sum(tensor.numel() for tensor in value), _dtype(value[0].dtype)
        return value.numel(), _dtype(value.dtype)
    except (AttributeError, TypeError):
        return -1, 0


def _dtype(dtype: Any) -> int:
    number = _dtypes.get(dtype)
    if number is None:
        number = _dtypes[dtype] = recorder.name(str(dtype).removeprefix("torch."))
    return number


def _reduce_op(op: Any) -> int:
    """The number of a reduce operation's name. Kept by the object: torch's enum members live for ever."""
    text = "SUM" if op is None else str(op).rpartition(".")[2][:20]
    number = recorder.name(text)
    if len(_reduce_ops) < 64:
        _reduce_ops[id(op)] = (number, op)
    return number


def _root(name: str, members: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """src or dst as a global rank; a group's own numbering is translated."""
    for parameter in ("src", "dst"):
        if parameter in _arguments[name]:
            value = _argument(name, parameter, args, kwargs)
            if value is not None:
                return int(value)
            inner = _argument(name, f"group_{parameter}", args, kwargs)
            if inner is not None:
                return members[int(inner)]
            return members[0] if name in ("gather", "scatter", "gather_object") else -1
    return -1


class _Call:
    """Where the arguments of one operation stand: found once, since a look-up by name in each call costs more than
    everything else that is recorded."""

    __slots__ = ("asynchronous", "group", "name", "number", "reduce_op", "rooted", "tensor", "tensor_name")

    def __init__(self, name: str) -> None:
        places = _arguments[name]
        self.name = name
        self.number = 0
        self.tensor_name = TENSOR_OF[name]
        self.tensor = places.get(self.tensor_name, 99)
        self.group = places.get("group", 99)
        self.reduce_op = places.get("op", -1)
        self.asynchronous = places.get("async_op", 99)
        self.rooted = "src" in places or "dst" in places
        _calls.append(self)


def _begin_anew() -> None:
    """Forget numbers that belong to another record, and the groups of a parent that was forked."""
    _forget(None)
    _dtypes.clear()
    _reduce_ops.clear()
    _group_numbers.clear()
    _others.clear()
    _made.clear()
    for call in _calls:
        call.number = 0


recorder.at_start.append(_begin_anew)

_Before = tuple[int, int, int, int]  # phase, its site, event, the call's site


def _enter_collective(call: _Call, slot: Slot, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Before | None:
    """Write the entry; returns what `_leave` restores, None if this rank is not in the group.

    The hot path of the whole recording: names are looked up once, nothing is called that can be done in place.
    """
    writer = recorder.writer
    if writer is None:
        return None
    count = len(args)
    pg = args[call.group] if call.group < count else kwargs.get("group")
    known = _groups.get(id(pg)) if pg is not None else (_groups.get(id(_default)) if _default is not None else None)
    if known is None:
        known = _group(pg)
        if known is None:
            return None
    number, sequence, members, _ = known
    site = slot.outer_site if slot.outer else recorder.site(3)
    error = sys.exc_info()[1]
    if error is not None:
        recorder.exception_handled(error, site)
    seq = sequence() + 1 - _others.get(number, 0)
    numel = -1
    dtype = reduce_op = 0
    if call.tensor != 99:
        tensor: Any = args[call.tensor] if call.tensor < count else kwargs.get(call.tensor_name)
        try:
            numel, dtype = tensor.numel(), _dtypes[tensor.dtype]
        except (AttributeError, KeyError):
            numel, dtype = _shape(tensor)
    if call.reduce_op >= 0:
        op = args[call.reduce_op] if call.reduce_op < count else kwargs.get("op")
        reduce_op = _reduce_ops[id(op)][0] if id(op) in _reduce_ops else _reduce_op(op)
    root = _root(call.name, members, args, kwargs) if call.rooted else -1
    if not call.number:
        call.number = recorder.name(call.name)
    time = now()
    index = writer.next_event()
    loop_step = recorder.loop_step
    _EVENT_PACK(
        writer.map, _RING_AT + (index & _RING_MASK) * _EVENT_SIZE,
        index, time, _COLLECTIVE_KIND, call.number, slot.outer, dtype, reduce_op, 0, number, seq, numel, root,
        -1, -1, -1, loop_step, site, writer.next_place(), index,
    )  # fmt: skip
    _COUNT_PACK(writer.map, _EVENTS_AT, index + 1)
    if slot.passing is not None:
        recorder.settle_exception()
    before = (slot.phase, slot.phase_site, index, site)
    slot.operations += 1
    slot.inside += 1
    if args[call.asynchronous] if call.asynchronous < count else kwargs.get("async_op"):
        recorder.change(slot.phase, slot.phase_site)
    else:
        _write_wait(writer, slot, _PHASE_COLLECTIVE, site, _COLLECTIVE, index, time)
    return before


def _write_wait(writer: Writer, slot: Slot, phase: int, site: int, wait: int, event: int, time: float) -> None:
    """`recorder.change` for a thread that enters or leaves a blocking call."""
    if not slot.at:
        slot.at = writer.take_slot()
    slot.phase, slot.phase_since, slot.phase_site = phase, time, site
    slot.changes = changes = slot.changes + 1
    _SLOT_PACK(
        writer.map, slot.at, changes, slot.thread, phase, wait, slot.main, time, time, site, recorder.loop_step,
        event, slot.operations, time, changes,
    )  # fmt: skip


def _leave(slot: Slot, before: _Before) -> None:
    slot.inside -= 1
    writer = recorder.writer
    if writer is not None:
        _write_wait(writer, slot, before[0], before[1], _NO_WAIT, -1, now())


def _fail(error: BaseException, site: int) -> None:
    try:
        recorder.exception_passes(error, site)
    except Exception:
        recorder.fault("exception")


def _remember_work(work: Any, event: int, site: int) -> None:
    if work is None or event < 0:
        return
    if len(_works) >= _WORKS_KEPT:
        for key in list(_works)[: _WORKS_KEPT // 2]:
            _works.pop(key, None)
    _works[id(work)] = (event, site)


# --- wrappers ---------------------------------------------------------------------------------------------------


def _guarded(
    name: str, original: Callable[..., Any], enter: Callable[..., _Before | None], keep_work: bool
) -> Callable[..., Any]:
    """Around a blocking call: enter, the call, leave. A fault of ours never reaches the caller."""

    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not recorder.on:
            return original(*args, **kwargs)
        before = None
        try:
            slot = recorder.slot
            inside = slot.inside
            try:
                before = None if inside else enter(slot, args, kwargs)
            finally:
                if before is None:
                    slot.inside = inside
        except Exception:
            recorder.fault(name)
        if before is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _fail(error, before[3])
            raise
        finally:
            try:
                _leave(slot, before)
            except Exception:
                recorder.fault(name)
        if keep_work and result is not None:
            try:
                _remember_work(result, before[2], before[3])
            except Exception:
                recorder.fault(name)
        return result

    return guarded


def _wrap_collective(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    return _guarded(name, original, functools.partial(_enter_collective, _Call(name)), keep_work=True)


def _wrap_object_operation(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def object_operation(*args: Any, **kwargs: Any) -> Any:
        if not recorder.on:
            return original(*args, **kwargs)
        slot = None
        try:
            slot = recorder.slot
            if not slot.outer:
                slot.outer_site = recorder.site(2)
                slot.outer = recorder.name(name)
            else:
                slot = None
        except Exception:
            recorder.fault(name)
        try:
            return original(*args, **kwargs)
        finally:
            if slot is not None:
                slot.outer = 0

    return object_operation


def _wrap_point_to_point(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    direction, parameter = POINT_TO_POINT[name]
    kind = _K[direction]
    blocking = name in ("send", "recv")
    places = _arguments[name]
    at_tensor, at_peer = places["tensor"], places[parameter]
    at_group, at_tag = places.get("group", 99), places.get("tag", 99)

    def enter(slot: Slot, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Before | None:
        writer = recorder.writer
        if writer is None:
            return None
        count = len(args)
        known = _group(args[at_group] if at_group < count else kwargs.get("group"))
        if known is None:
            return None
        number, _, members, _ = known
        site = slot.outer_site if slot.outer else recorder.site(3)
        error = sys.exc_info()[1]
        if error is not None:
            recorder.exception_handled(error, site)
        peer = args[at_peer] if at_peer < count else kwargs.get(parameter)
        if peer is None:
            inner = _argument(name, f"group_{parameter}", args, kwargs)
            peer = members[int(inner)] if inner is not None else -1
        tag = args[at_tag] if at_tag < count else kwargs.get("tag", 0)
        tensor = args[at_tensor] if at_tensor < count else kwargs.get("tensor")
        numel, dtype = _shape(tensor)
        pair = (direction, number, peer, tag)
        nth = _pair_counts[pair] = _pair_counts.get(pair, 0) + 1
        if _counts_everything(known):
            _others[number] = _others.get(number, 0) + 1
        time = now()
        index = writer.next_event()
        _EVENT_PACK(
            writer.map, _RING_AT + (index & _RING_MASK) * _EVENT_SIZE,
            index, time, kind, recorder.name(name), slot.outer, dtype, 0, 0, number, -1, numel, -1, peer, tag, nth,
            recorder.loop_step, site, writer.next_place(), index,
        )  # fmt: skip
        _COUNT_PACK(writer.map, _EVENTS_AT, index + 1)
        if slot.passing is not None:
            recorder.settle_exception()
        before = (slot.phase, slot.phase_site, index, site)
        slot.operations += 1
        slot.inside += 1
        if blocking:
            _write_wait(writer, slot, _PHASE_COLLECTIVE, site, _P2P, index, time)
        else:
            recorder.change(slot.phase, slot.phase_site)
        return before

    return _guarded(name, original, enter, keep_work=not blocking)


def _wrap_work_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    def enter(slot: Slot, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Before:
        event, _ = _works.pop(id(args[0]), (-1, 0))
        site = recorder.site(3)
        before = (slot.phase, slot.phase_site, event, site)
        slot.inside += 1
        recorder.change(_PHASE_COLLECTIVE, site, _COLLECTIVE, event)
        return before

    return _guarded("Work.wait", original, enter, keep_work=False)


def _blocking(name: str, original: Callable[..., Any], wait: int, phase: int, kind: str) -> Callable[..., Any]:
    """A wrapper for calls that block until others come, but have no sequence number."""

    def enter(slot: Slot, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Before:
        site = recorder.site(3)
        event = recorder.event(_K[kind], site, op=recorder.name(name))
        before = (slot.phase, slot.phase_site, event, site)
        slot.inside += 1
        recorder.change(phase, site, wait, event)
        return before

    return _guarded(name, original, enter, keep_work=False)


def _wrap_monitored_barrier(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    inner = _blocking(name, original, _COLLECTIVE, _PHASE_COLLECTIVE, "collective")

    @functools.wraps(original)
    def monitored_barrier(*args: Any, **kwargs: Any) -> Any:
        known, before = None, 0
        if recorder.on:
            try:
                known = _group(_argument(name, "group", args, kwargs))
                before = known[1]() if known is not None else 0
            except Exception:
                recorder.fault(name)
        try:
            return inner(*args, **kwargs)
        finally:
            if known is not None:
                try:
                    # It is made of sends and receives, rank 0 of more than the others.
                    _others[known[0]] = _others.get(known[0], 0) + known[1]() - before
                except Exception:
                    recorder.fault(name)

    return monitored_barrier


def _wrap_new_group(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    inner = _blocking(name, original, _NEW_GROUP, _PHASE_COLLECTIVE, "new-group")

    @functools.wraps(original)
    def new_group(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        if recorder.on:
            try:
                if result is not None:
                    _group(result)
            except Exception:
                recorder.fault(name)
        return result

    return new_group


def _wrap_init(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    inner = _blocking(name, original, _INIT, _PHASE_INIT, "init")

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        global _default
        try:
            from rankcall.record import start

            start.become_rank()
            if recorder.on:
                recorder.identify(initialized="entered", **_claims(name, args, kwargs))
        except Exception:
            recorder.fault(name)
        result = inner(*args, **kwargs)
        if recorder.on:
            try:
                _default = None
                _group(None)
                recorder.identify(
                    initialized="done",
                    claimed_rank=_c10d.get_rank(),
                    world_size=_c10d.get_world_size(),
                    backend=str(_c10d.get_backend()),
                    **_devices(),
                )
                from rankcall.record import dump

                dump.serve()
            except Exception:
                recorder.fault(name)
        return result

    return init_process_group


def _claims(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, object]:
    """Which rank, of how many, meeting where: as the call says, else as the environment does."""
    import os

    rank = _argument(name, "rank", args, kwargs)
    world = _argument(name, "world_size", args, kwargs)
    method = _argument(name, "init_method", args, kwargs)
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    master = f"{address}:{port}" if address or port else ""
    if isinstance(method, str) and method not in ("", "env://"):
        master = method
    if _argument(name, "store", args, kwargs) is not None:
        master = "store"
    claims: dict[str, object] = {
        "claimed_rank": _number(rank, os.environ.get("RANK")),
        "world_size": _number(world, os.environ.get("WORLD_SIZE")),
        "master": master,
        # tcp:// and env:// alike: under torchrun every rank is a client of the agent's store, wherever it points.
        "uses_agent_store": os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        and (not isinstance(method, str) or method.startswith(("env://", "tcp://")))
        and master != "store",
        "backend": str(_argument(name, "backend", args, kwargs) or ""),
    }
    return claims


def _number(given: Any, environment: str | None) -> int | None:
    if isinstance(given, int) and given >= 0:
        return given
    try:
        return int(environment) if environment is not None else None
    except ValueError:
        return None


def _devices() -> dict[str, object]:
    """What is known without touching a device: versions, visible devices, the current one if CUDA is up."""
    import os
    import platform

    import torch

    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda:
        versions["cuda"] = str(torch.version.cuda)
    devices: list[str] = []
    if torch.cuda.is_initialized():
        index = torch.cuda.current_device()
        devices.append(f"cuda:{index} {torch.cuda.get_device_name(index)}")
    elif os.environ.get("CUDA_VISIBLE_DEVICES"):
        devices.append(f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}")
    return {"versions": versions, "devices": devices}


def _wrap_destroy(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        global _default
        if recorder.on:
            try:
                sample_groups()
                recorder.event(_K["destroy"], recorder.site(2), op=recorder.name(name))
                group = _argument(name, "group", args, kwargs)
                if group is None or group is _default:
                    recorder.identify(initialized="destroyed")
                    _forget(None)
                else:
                    _forget(group)
            except Exception:
                recorder.fault(name)
        return original(*args, **kwargs)

    return destroy_process_group


def _forget(group: Any) -> None:
    """Drop what refers to destroyed groups: their ids may be used again."""
    global _default
    if group is None:
        _groups.clear()
        _works.clear()
        _pair_counts.clear()
        _default = None
    else:
        _groups.pop(id(group), None)
