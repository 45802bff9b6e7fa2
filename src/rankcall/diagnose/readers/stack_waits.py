"""The operation that a stack says its thread waits in.

Read from where torch keeps its own code (torch 2.13, and the names that older versions had). A stack shows that a call
was entered, not that it blocks: on gloo every synchronous call does, on NCCL those that meet at the store or wait for
the device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from rankcall.diagnose.frames import code_of
from rankcall.diagnose.readers.native_waits import backend_of, is_operation, is_service, made_wait, native_wait
from rankcall.diagnose.readers.stack_places import is_user, last_name, names_of_native, site_of_stack
from rankcall.diagnose.readers.stack_sample import is_native
from rankcall.snapshot import Frame, Wait

_C10D = re.compile(r"(?:^|/)torch/distributed/distributed_c10d\.py$")
_FUNCTIONAL = re.compile(r"(?:^|/)torch/distributed/_functional_collectives\.py$")
_RENDEZVOUS = re.compile(r"(?:^|/)torch/distributed/rendezvous\.py$")
_DISTRIBUTED = re.compile(r"(?:^|/)torch/distributed/")
_DISTRIBUTED_UTILS = re.compile(r"(?:^|/)torch/distributed/utils\.py$")
_DDP = re.compile(r"(?:^|/)torch/nn/parallel/distributed\.py$")
_DEVICE_MODULES = re.compile(
    r"(?:^|/)torch(?:_npu|_xla)?/(?:cuda|xpu|accelerator|mps|npu|musa|hpu|mtia)/[\w/]{0,60}\.py$"
)
# Frames that stand between the caller and a call and say nothing: loggers, decorators, the dispatcher, our own hooks.
_WRAPPERS = re.compile(
    r"(?:^|/)torch/(?:distributed/c10d_logger|_ops|_library/\w+|utils/_contextlib|_dynamo/eval_frame|_compile)\.py$"
    r"|(?:^|/)(?:contextlib|functools|typing_extensions|warnings)\.py$|/rankcall/record/"
)
_COLLECTIVES = frozenset({
    "all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "all_gather", "all_gather_into_tensor",
    "all_gather_single", "all_gather_coalesced", "_all_gather_base", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base", "all_to_all", "all_to_all_single",
    "barrier", "monitored_barrier", "all_reduce_multigpu", "broadcast_multigpu", "all_gather_multigpu",
    "reduce_multigpu",
})  # fmt: skip
_OBJECT_OPERATIONS = frozenset({"all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"})
_COALESCED = frozenset({"_coalescing_manager", "_batch_p2p_manager"})
_DIRECTIONS = {
    "send": "send", "isend": "send", "send_object_list": "send",
    "recv": "recv", "irecv": "recv", "recv_object_list": "recv", "recv_any_source": "recv",
    "batch_isend_irecv": "",
}  # fmt: skip
_NEW_GROUPS = ("new_group", "split_group", "shrink_group")
_MAKES_GROUPS = frozenset({
    *_NEW_GROUPS, "new_subgroups", "new_subgroups_by_enumeration", "_new_group_with_tag", "_new_process_group_helper",
    "_store_based_barrier",
})  # fmt: skip
_FUNCTIONAL_WAITS = frozenset({"wait_tensor", "trigger_wait", "wait"})
_DDP_BROADCASTS = frozenset({
    "_sync_buffers", "_sync_module_buffers", "_sync_module_states", "_default_broadcast_coalesced",
    "_distributed_broadcast_coalesced", "_sync_params",
})  # fmt: skip
_WRAPS_A_MODEL = {
    "_verify_param_shape_across_processes": "all_gather", "_verify_model_across_ranks": "all_gather",
    "_sync_params_and_buffers": "broadcast", "_sync_module_states": "broadcast",
}  # fmt: skip

_POINT_TO_POINT = re.compile(r"\b(?:batch_)?i(?:send|recv)\b")


@dataclass(frozen=True, slots=True)
class _Call:
    """What the frames between the user's line and the innermost one show."""

    native: tuple[str, ...]  # names above the innermost Python frame, innermost first
    library: tuple[Frame, ...]  # Python frames, innermost first, up to the user's line
    site: Frame | None

    @property
    def inner(self) -> Frame | None:
        """The innermost frame that is no wrapper."""
        return next((frame for frame in self.library if _WRAPPERS.search(frame.file) is None), None)


def wait_from_stack(frames: Sequence[Frame], sources: Mapping[str, str] | None = None) -> Wait | None:
    """The operation that a thread's stack, innermost first, is inside of; None for one that is in none, and for a
    thread that serves the process group itself. `op` is empty where the stack does not tell it.

    `work.wait()` is C++ and has no frame of Python's: it shows with native frames, or by the user's line, where
    `sources` (texts by path) has it.
    """
    call = _call(frames)
    if is_service(call.native):
        return None
    wait = _python_wait(call) or native_wait(call.native, names_of_native(frames)) or _line_wait(call, sources or {})
    if wait is None:
        return None
    return msgspec.structs.replace(wait, backend=backend_of(call.native), site=call.site)


def _call(frames: Sequence[Frame]) -> _Call:
    native: list[str] = []
    library: list[Frame] = []
    for frame in frames:
        if is_native(frame):
            if not library:
                native.append(frame.function)
        elif is_user(frame.file):
            break
        else:
            library.append(frame)
    return _Call(tuple(native), tuple(library), site_of_stack(frames))


def _python_wait(call: _Call) -> Wait | None:
    inner = call.inner
    if inner is None:
        return None
    names = [last_name(frame.function) for frame in call.library if _C10D.search(frame.file)]
    if _DISTRIBUTED.search(inner.file):
        if "init_process_group" in names or any(_RENDEZVOUS.search(frame.file) for frame in call.library):
            return made_wait("init", "init_process_group")
        if last_name(inner.function) in _MAKES_GROUPS:
            return made_wait("new-group", next((name for name in names if name in _NEW_GROUPS), "new_group"))
    if _C10D.search(inner.file):
        return _c10d_wait(last_name(inner.function), names)
    if _FUNCTIONAL.search(inner.file):
        return _functional_wait(call)
    name = last_name(inner.function)
    if _DISTRIBUTED_UTILS.search(inner.file) and name in _WRAPS_A_MODEL:
        return made_wait("collective", _WRAPS_A_MODEL[name], "DistributedDataParallel")
    if _DDP.search(inner.file):
        if name in _DDP_BROADCASTS:
            return made_wait("collective", "broadcast", "forward")
        # It rebuilds the reducer's buckets, which rank 0 tells the others, in C++.
        return made_wait("collective", "", "forward") if name == "_pre_forward" else None
    if _DEVICE_MODULES.search(inner.file) and name in ("synchronize", "wait"):
        return made_wait("device", "", "synchronize")
    return None


def _c10d_wait(inner: str, names: Sequence[str]) -> Wait | None:
    """The innermost function must be an operation: a helper (pickling an object, say) is work before it."""
    known = [name for name in names if name in _COLLECTIVES or name in _OBJECT_OPERATIONS or name in _DIRECTIONS]
    if inner in _COALESCED or inner in ("wait", "_CoalescingManager"):
        return made_wait("collective", "", next(iter(known), inner))
    if inner not in known:
        return None
    outer = known[-1]
    if outer in _DIRECTIONS:
        return made_wait("p2p", _DIRECTIONS[outer], outer)
    plain = [name for name in known if name in _COLLECTIVES]
    objects = [name for name in known if name in _OBJECT_OPERATIONS]
    return made_wait("collective", plain[-1] if plain else "", objects[-1] if objects else "")


def _functional_wait(call: _Call) -> Wait | None:
    names = [last_name(frame.function) for frame in call.library if _FUNCTIONAL.search(frame.file)]
    if names[0] in _FUNCTIONAL_WAITS:
        return made_wait("collective", "", "wait_tensor")
    known = [name for name in names if is_operation(name)]
    return made_wait("collective", known[-1]) if known else None


def _line_wait(call: _Call, sources: Mapping[str, str]) -> Wait | None:
    """`work.wait()` on the line that the stack ends in. Every other wait (of an event, a child process, a future) is
    Python's own code, and has frames. Where the file also has isend or irecv, it may be one of theirs."""
    if call.site is None or call.library or call.native or ".wait(" not in code_of(call.site, sources):
        return None
    return None if _POINT_TO_POINT.search(sources[call.site.file]) else made_wait("collective", "", "wait")
