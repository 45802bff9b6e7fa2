"""The operation that native frames are inside of: c10d's, gloo's and NCCL's own functions, and the device's waits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rankcall.diagnose.kinds import algorithm
from rankcall.snapshot import Wait, WaitKind

# Threads that serve the process group, the store or the device. They run, or wait, all the time.
_SERVICE = re.compile(
    r"::runLoop$|Watchdog|[Hh]eartbeat|workCleanupLoop|ncclProxy|StoreDaemon|StoreMasterDaemon|BackgroundThread"
    r"|transport::\w+::Loop::run$|^uv_run$|commHash|ncclAsyncJobMain|faulthandler_thread"
)
_RUN_LOOP = re.compile(r"ProcessGroup\w*::runLoop$")
_GROUP_METHOD = re.compile(r"(?:^|::)ProcessGroup(?:\w*)::(\w+)$")
_ASYNC_WORK = re.compile(r"::Async(\w+?)(?:CUDA)?Work::")
_WORK_WAIT = re.compile(r"(?:^|::)\w*Work\w*::(?:wait|synchronize\w*|synchronizeInternal)$|^c10d::wait_tensor$")
_STORE = re.compile(r"c10d::(?:TCP|File|Prefix|Hash)Store::(?:do)?(?:get|wait|check)", re.IGNORECASE)
_NCCL_CALL = re.compile(r"^p?nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|Send|Recv|AlltoAll)\b")
_NCCL_OTHER = re.compile(r"^p?nccl(?:Group(?:End|EndInternal)|CommInit\w*|CommSplit|EnqueueCheck)")
_GLOO_CALL = re.compile(
    r"^gloo::(?:\(anonymous namespace\)::)?(allreduce|allgatherv?|reduce_scatter|broadcast|reduce|gatherv?|scatter"
    r"|alltoallv?|barrier)$"
)
_GLOO_BUFFER = re.compile(r"^gloo::transport::\w+::(?:UnboundBuffer|Buffer)::wait(?:Send|Recv)$")
_GLOO_CONNECT = re.compile(
    r"^gloo::(?:rendezvous::Context|transport::\w+::\w*Context)::(?:connectFullMesh|createAndConnect)"
)
_DEVICE_WAIT = re.compile(
    r"^(?:cuda|hip)(?:(?:Stream|Device|Event)Synchronize|Memcpy$)|^cu(?:(?:Stream|Ctx|Event)Synchronize|MemcpyDtoH)"
    r"|^aclrtSynchronize|^zeEventHostSynchronize|^at::native::_local_scalar_dense_cuda"
)
_REDUCER_WAIT = re.compile(r"c10d::Reducer::finalize_backward$")
_REDUCER_BROADCAST = re.compile(r"c10d::(?:Reducer::(?:rebuild_buckets|sync_bucket_indices)|broadcast_coalesced)$")
_VERIFIES = re.compile(r"c10d::verify_params_across_processes$")
_AUTOGRAD = re.compile(r"^torch::autograd::(?:python::)?(?:Python)?Engine::|^THPEngine_run_backward$")

_SPELLINGS = {
    "bcast": "broadcast", "recvanysource": "recv", "allgatherv": "all_gather", "gatherv": "gather",
    "alltoallv": "all_to_all",
}  # fmt: skip
_ALGORITHMS = frozenset({
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "barrier",
    "monitored_barrier",
})  # fmt: skip


def made_wait(kind: WaitKind, op: str, outer: str = "") -> Wait:
    """A wait that a stack shows. `outer` is left out where it is the operation itself."""
    return Wait(kind=kind, op=op, outer=outer if outer != op or kind == "p2p" else "", source="stack")


def is_service(names: Iterable[str]) -> bool:
    """True for a thread that serves the process group, the store or the device."""
    return any(_SERVICE.search(name) for name in names)


def gloo_operation(names: Sequence[str]) -> str:
    """The operation that one of gloo's own threads runs, "" for any other thread."""
    if not any(_RUN_LOOP.search(name) for name in names):
        return ""
    for name in names:
        call = _ASYNC_WORK.search(name) or _GLOO_CALL.match(name)
        if call is not None:
            return _operation(call.group(1))
    return ""


def native_wait(names: Sequence[str], everything: Sequence[str]) -> Wait | None:
    """What the native frames above the innermost Python frame wait in; `everything` are all of the stack."""
    for name in names:
        if _REDUCER_WAIT.search(name):
            return made_wait("collective", "all_reduce", "backward")
        if _REDUCER_BROADCAST.search(name):
            return made_wait("collective", "broadcast", "forward")
        if _VERIFIES.search(name):
            return made_wait("collective", "all_gather", "DistributedDataParallel")
    for name in names:
        if method := _GROUP_METHOD.search(name):
            operation = _operation(method.group(1))
            if operation in ("send", "recv"):
                return made_wait("p2p", operation)
            if operation:
                return made_wait("collective", operation)
        if (found := _NCCL_CALL.match(name) or _GLOO_CALL.match(name)) is not None:
            operation = _operation(found.group(1))
            kind: WaitKind = "p2p" if operation in ("send", "recv") else "collective"
            return made_wait(kind, operation)
    if any("RecvWork::" in name for name in names):
        return made_wait("p2p", "recv", "wait")
    if any("SendWork::" in name for name in names):
        return made_wait("p2p", "send", "wait")
    if any(_WORK_WAIT.search(name) for name in names):
        # Inside autograd it is an operation of a gradient hook.
        return made_wait("collective", "", "backward" if in_autograd(everything) else "")
    if any(_GLOO_CONNECT.match(name) for name in names):
        return made_wait("new-group", "new_group")
    if any(_NCCL_OTHER.match(name) or _GLOO_BUFFER.match(name) for name in names):
        return made_wait("collective", "")
    if any(_STORE.match(name) for name in names):
        return made_wait("collective", "", "Store.get")
    return made_wait("device", "") if any(_DEVICE_WAIT.match(name) for name in names) else None


def in_autograd(names: Iterable[str]) -> bool:
    """True where autograd's engine runs a backward pass."""
    return any(_AUTOGRAD.match(name) for name in names)


def backend_of(names: Iterable[str]) -> str:
    """gloo or nccl, where the names tell."""
    for name in names:
        lowered = name.lower()
        if "gloo" in lowered:
            return "gloo"
        if "nccl" in lowered:
            return "nccl"
    return ""


def _operation(name: str) -> str:
    """c10d's C++ spelling, or NCCL's, as the operation's name; "" for what is none: `AllReduce` is `all_reduce`."""
    spelled = name.lower().strip("_")
    found = algorithm(_SPELLINGS.get(spelled, spelled))
    return found if is_operation(found) or found in ("send", "recv") else ""


def is_operation(name: str) -> bool:
    """True for any spelling of a collective."""
    return algorithm(name) in _ALGORITHMS
