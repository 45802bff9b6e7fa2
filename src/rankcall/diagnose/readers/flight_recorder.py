"""One rank's flight-recorder dump in JSON -> what is pending in each group. Reads untrusted text: every field is
checked, what does not fit is skipped."""

from __future__ import annotations

import msgspec

_MOST_ENTRIES = 200_000


class Entry(msgspec.Struct):
    """An entry as torch writes it; the fields that are read of it."""

    collective_seq_id: int = -1
    is_p2p: bool = False
    op_id: int = -1
    pg_id: int = -1
    process_group: list[str] = []
    profiling_name: str = ""
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    retired: bool = False
    state: str = ""
    time_created_ns: int = 0

    @property
    def backend(self) -> str:
        return self.profiling_name.partition(":")[0]

    @property
    def op(self) -> str:
        return self.profiling_name.partition(":")[2].partition(" ")[0]

    @property
    def numel(self) -> int:
        """Elements of all input tensors together; sizes are bounded so that a crafted dump costs nothing."""
        total = 0
        for sizes in self.input_sizes[:10_000]:
            product = 1
            for size in sizes[:64]:
                product = min(product * max(size, 0), 1 << 62)
            total += product
        return total


class Dump(msgspec.Struct):
    """The outer object."""

    entries: list[Entry] = []


def dump_from_json(data: bytes) -> Dump:
    """Raises msgspec.DecodeError for what is no dump."""
    dump = msgspec.json.decode(data, type=Dump, strict=False)
    del dump.entries[:-_MOST_ENTRIES]
    return dump


class Pending(msgspec.Struct):
    """How far one group has come: the largest numbers enqueued and finished, and the oldest entry not finished.

    On gloo `retired` is the only sign of completion; on NCCL `state` says completed too.
    """

    name: str
    pg_id: int
    enqueued: int = 0
    started: int | None = None
    finished: int = 0
    oldest: Entry | None = None


def pending_by_group(dump: Dump) -> list[Pending]:
    """One Pending for each (name, pg_id), point-to-point left out, in order of first appearance."""
    found: dict[tuple[str, int], Pending] = {}
    for entry in dump.entries:
        if entry.is_p2p or entry.collective_seq_id < 0:
            continue
        name = entry.process_group[0] if entry.process_group else ""
        state = found.setdefault((name, entry.pg_id), Pending(name, entry.pg_id))
        state.enqueued = max(state.enqueued, entry.collective_seq_id)
        if entry.state in ("started", "completed"):
            state.started = max(state.started or 0, entry.collective_seq_id)
        if entry.retired or entry.state == "completed":
            state.finished = max(state.finished, entry.collective_seq_id)
        elif state.oldest is None or entry.collective_seq_id < state.oldest.collective_seq_id:
            state.oldest = entry
    return list(found.values())
