"""Which spellings of a collective are one algorithm, and which demand equal sizes, roots or reductions.

Ranks that call different spellings of one algorithm meet; only different algorithms are a mismatch.
"""

from __future__ import annotations

import re

from rankcall.snapshot import Event, Wait

_SPELLINGS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("allreduce", "all_reduce_coalesced", "allreduce_coalesced", "allreduce_sparse", "all_reduce"),
    "all_gather": (
        "allgather", "allgather_base", "all_gather_into_tensor", "all_gather_single", "all_gather_tensor",
        "allgather_coalesced", "all_gather_coalesced", "allgather_into_tensor_coalesced", "all_gather_object",
        "all_gather_into_tensor_coalesced", "all_gather_tensor_autograd", "all_gather_base", "all_gather_v",
        "all_gather",
    ),
    "reduce_scatter": (
        "reducescatter", "reduce_scatter_base", "reduce_scatter_tensor", "reduce_scatter_single",
        "reduce_scatter_tensor_coalesced", "reduce_scatter_coalesced", "reduce_scatter_v", "reduce_scatter",
    ),
    "all_to_all": (
        "alltoall", "alltoall_base", "all_to_all_single", "all_to_all_base", "all_to_all_v_single", "all_to_all",
    ),
    "broadcast": ("broadcast_object_list", "broadcast_coalesced", "broadcast_oop", "broadcast"),
    "reduce": ("reduce_oop", "reduce"),
    "gather": ("gather_object", "gather"),
    "scatter": ("scatter_object_list", "scatter"),
    "barrier": ("barrier", "all_reduce_barrier"),  # NCCL's barrier is an all_reduce of one element
    "monitored_barrier": ("monitoredbarrier", "monitored_barrier"),
}  # fmt: skip
_ALGORITHM = {spelling: name for name, spellings in _SPELLINGS.items() for spelling in spellings}

# gloo has no reduce_scatter of its own: the flight recorder shows it as an all_reduce.
_ONE_ON_GLOO = frozenset({"all_reduce", "reduce_scatter"})
_EQUAL_NUMEL = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather"})
_UNEVEN_GATHER = frozenset({"all_gather", "gather"})
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
_REDUCING = frozenset({"all_reduce", "reduce_scatter", "reduce"})
# One call of these is several collectives, of sizes that travel first.
_SIZED_BY_THEMSELVES = re.compile(r"object|coalesced")


def algorithm(op: str) -> str:
    """`gloo:all_reduce`, `allreduce_` and `all_reduce_coalesced` are all `all_reduce`. Unknown names stay."""
    name = op.rpartition(":")[2].rpartition(".")[2].strip().lower().strip("_")
    return _ALGORITHM.get(name, name)


def same_algorithm(one: str, other: str, backend: str = "") -> bool:
    """True when ranks that call these two meet. An unknown (empty) operation meets everything."""
    first, second = algorithm(one), algorithm(other)
    if first == second or not first or not second:
        return True
    return "gloo" in backend and {first, second} <= _ONE_ON_GLOO


def demands_equal_sizes(call: Event | Wait) -> bool:
    """True when every rank has to give the same number of elements."""
    if _SIZED_BY_THEMSELVES.search(call.outer) or _SIZED_BY_THEMSELVES.search(call.op):
        return False
    return algorithm(call.op) in _EQUAL_NUMEL


def is_gather(op: str) -> bool:
    """True for the operations whose unequal sizes are called uneven-gather."""
    return algorithm(op) in _UNEVEN_GATHER


def has_root(op: str) -> bool:
    """True when src or dst has to be the same on all ranks."""
    return algorithm(op) in _ROOTED


def reduces(op: str) -> bool:
    """True when the ReduceOp has to be the same on all ranks."""
    return algorithm(op) in _REDUCING
