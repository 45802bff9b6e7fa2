"""The bytes of a record: where each thing stands. Shared by the writer in the rank and the reader outside.

One file a process, memory-mapped, allocated whole before it is mapped, never truncated:

    header      magic, layout version, counters, group numbers
    blobs       JSON in two halves with a generation number, so that a reader always finds a whole one:
                identity (who am I), note (exit note), handled (exceptions that did not end the process)
    slots       one a thread: what it is doing now
    ring        the last 4,096 events
    strings     an append-only table: call sites, names, groups; events speak of them by number

A slot and an event carry their number at both ends: a reader that finds two different ones looks again.
Little-endian and naturally aligned, so that an eight-byte number is written in one store.
"""

from __future__ import annotations

import struct

MAGIC = b"RANKCALL"
LAYOUT_VERSION = 1

RING_EVENTS = 4096
SLOTS = 64
GROUPS = 512

# --- header -----------------------------------------------------------------------------------------------------
HEADER = struct.Struct("<8sIIQQ")  # magic, layout version, reserved, pid, start time in clock ticks since boot
COUNTERS_AT = 64
COUNTERS = (
    "events",  # written last of an event: how many the ring has seen
    "batches",
    "loader_ends",
    "forwards",
    "eval_forwards",
    "backwards",
    "optimizer_steps",
    "scaler_steps",
    "exceptions",
    "loop_step",  # steps of the first optimizer; -1 when it cannot be told
    "strings_end",  # bytes of the string table in use
    "slots_used",
    "faults",  # hooks that failed
)
COUNTER = struct.Struct("<q")
COUNTER_INDEX = {name: COUNTERS_AT + 8 * place for place, name in enumerate(COUNTERS)}
GROUPS_AT = 512
GROUP = struct.Struct("<q")  # the largest sequence number seen of a group; -1: none
HEADER_SIZE = 8192
assert GROUPS_AT + GROUPS * GROUP.size <= HEADER_SIZE

# --- blobs ------------------------------------------------------------------------------------------------------
BLOB_HEAD = struct.Struct("<QII")  # generation (its lowest bit names the valid half), length of half 0, of half 1
BLOBS = {"identity": 8192, "note": 24576, "handled": 12288}  # bytes of one half
BLOB_AT: dict[str, int] = {}
_at = HEADER_SIZE
for _name, _half in BLOBS.items():
    BLOB_AT[_name] = _at
    _at += 64 + 2 * _half

# --- slots ------------------------------------------------------------------------------------------------------
# begin, thread id, phase, wait kind, is main, -, phase since, wait since, phase site, step, event waited in (-1:
# none), operations started, time of this change, end
SLOT = struct.Struct("<QQBBB5xddIiqQdQ")
SLOTS_AT = _at
SLOT_SIZE = 128
assert SLOT.size <= SLOT_SIZE

# --- ring -------------------------------------------------------------------------------------------------------
# index, time, kind, -, op, outer, dtype, reduce op, group, sequence number, number of elements, root, peer, tag,
# nth, step, site, place, index again
EVENT = struct.Struct("<QdBxHHHHHiqqiiiiiIqQ")
RING_AT = SLOTS_AT + SLOTS * SLOT_SIZE
EVENT_SIZE = 96
assert EVENT.size <= EVENT_SIZE, EVENT.size

# --- strings ----------------------------------------------------------------------------------------------------
STRINGS_AT = RING_AT + RING_EVENTS * EVENT_SIZE
STRINGS_SIZE = 192 * 1024
STRING_HEAD = struct.Struct("<HBx")  # bytes, tag
TAG_NAME, TAG_SITE, TAG_GROUP = 1, 2, 3
SIZE = STRINGS_AT + STRINGS_SIZE

NONE = -1  # "no value" of a number that cannot be negative
UNKNOWN = -2

PHASES = (
    "idle", "init", "compile", "data", "forward", "backward", "optimizer", "collective", "evaluate", "save", "load",
    "exit",
)  # fmt: skip
WAITS = ("none", "collective", "p2p", "new-group", "init", "device")
KINDS = (
    "collective", "send", "recv", "wait", "forward", "eval-forward", "backward", "step", "scaler-step", "batch",
    "loader-end", "save", "load", "init", "new-group", "destroy", "compile", "exception", "exit",
)  # fmt: skip
PHASE = {name: number for number, name in enumerate(PHASES)}
WAIT = {name: number for number, name in enumerate(WAITS)}
KIND = {name: number for number, name in enumerate(KINDS)}
# Events that all ranks of one program share: their own count is what rings are laid side by side by.
COMPARED = frozenset({"collective", "send", "recv", "forward", "eval-forward", "backward", "step"})


def record_name(host: str, pid: int, start: int) -> str:
    """The file name of a process's record: host, pid and start time tell processes apart for ever."""
    return f"{host}-{pid}-{start}.rec"
