"""One rank's dump as columns: its ring of operations, oldest first."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

from rankcall.diagnose.readers.dumps.reduce import P2P
from rankcall.diagnose.readers.dumps.shared import Call


@dataclass(frozen=True)
class GroupSeen:
    """A group as one dump names it. `pg_id` tells incarnations of one name apart, and means nothing on other ranks.
    Numbers are None where the ring and the status hold none."""

    pg_id: int
    name: str
    description: str
    backend: str
    first: int | None
    last: int | None
    done: int | None


@dataclass(eq=False)
class Ring:
    """The columns of one file. `calls` and `stacks` hold numbers of the shared tables; times are nanoseconds, 0 for
    none; `open` are the places of the entries that were not done."""

    path: Path
    version: str
    library: str
    host: str
    rank: int | None  # as the file itself says it; most do not
    left_out: int
    first_record: int | None  # how many operations the process had begun before the first that it still holds
    usual_gap: float
    timeout_s: float | None
    config: tuple[tuple[str, str, int], ...]
    groups: tuple[GroupSeen, ...]
    open: Sequence[int]
    written: float
    group: array[int]
    seq: array[int]
    calls: array[int]
    flags: bytes
    created: array[int]
    ended: array[int] | None  # None: nobody asked for it
    stacks: array[int]
    gathered: dict[int, int] | None = None  # sizes of groups, by number, once somebody has asked
    _places: dict[int, list[int]] = field(default_factory=dict)
    _pairs: dict[tuple[int, str, int | None, int | None], list[int]] | None = None

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def whole(self) -> bool:
        """It still holds the process's first operation."""
        return self.first_record == 0

    @property
    def begun(self) -> int | None:
        """How many operations the process has begun in all; None where the dump does not say."""
        return self.first_record + len(self) + self.left_out if self.first_record is not None else None

    @property
    def newest(self) -> float | None:
        """When its last operation began, in seconds."""
        return self.created[-1] / 1e9 if self.created else None

    def places(self, number: int) -> list[int]:
        """The places of one group's collectives, by its number here."""
        found = self._places.get(number)
        if found is None:
            found = list(compress(range(len(self.group)), map(number.__eq__, self.group)))
            if any(flag & P2P for flag in set(self.flags)):
                flags = self.flags
                found = [place for place in found if not flags[place] & P2P]
            self._places[number] = found
        return found

    def pairs(self, calls: Sequence[Call]) -> dict[tuple[int, str, int | None, int | None], list[int]]:
        """The places of sends and receives, by group number, direction, source and target (ranks in the group)."""
        if self._pairs is None:
            found: dict[tuple[int, str, int | None, int | None], list[int]] = {}
            if any(flag & P2P for flag in set(self.flags)):
                for place, flag in enumerate(self.flags):
                    if flag & P2P:
                        call = calls[self.calls[place]]
                        if call.is_p2p:
                            key = (self.group[place], call.op, call.source, call.target)
                            found.setdefault(key, []).append(place)
            self._pairs = found
        return self._pairs


def ring_from(
    path: Path, written: float, header: dict[str, Any], columns: dict[str, array[int]], config: Sequence[Sequence[Any]]
) -> Ring:
    """Put a worker's answer together; `config` has its member lists as numbers of the shared table."""
    numbers = {name: dict(header[name]) for name in ("first", "last", "done")}
    groups = tuple(
        GroupSeen(pg_id, name, description, backend, *(numbers[what].get(at) for what in ("first", "last", "done")))
        for at, (pg_id, name, description, backend) in enumerate(header["groups"])
    )
    return Ring(
        path=path, version=header["version"], library=header["library"], host=header["host"], rank=header["rank"],
        left_out=header["left_out"], first_record=header["first_record"], usual_gap=header["gap"],
        timeout_s=header["timeout_ms"] / 1000 if header["timeout_ms"] else None,
        config=tuple((name, description, members) for name, description, members in config),
        groups=groups, open=header["open"], written=written,
        group=columns["group"], seq=columns["seq"], calls=columns["call"], flags=columns["flags"].tobytes(),
        created=columns["created"], ended=columns.get("ended"), stacks=columns["stack"],
    )  # fmt: skip
