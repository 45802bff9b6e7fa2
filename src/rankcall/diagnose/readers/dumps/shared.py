"""What the rings of all ranks share: operations, call stacks and member lists, each told once and called by number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rankcall.diagnose.frames import innermost_user
from rankcall.diagnose.kinds import algorithm
from rankcall.snapshot import Frame

Runs = tuple[tuple[int, int], ...]

# What has to be equal on all ranks of a group, by algorithm. Sizes of an all-to-all may differ; the ranks of a scatter
# that are not its source give nothing; a `coalesced` entry ends a batch and has no sizes of its own.
_BY_INPUT = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather"})
_BY_OUTPUT = frozenset({"scatter"})
_UNEVEN = re.compile(r"_v(_|$)|coalesced|object", re.IGNORECASE)
# Operations that no member can have finished before all have begun. The source of a broadcast may be done early.
SYMMETRIC = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
# As torch's recorder spells element types -> as users do.
_TYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Byte": "uint8", "Char": "int8", "Bool": "bool",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """One operation as it was called. `op` is its algorithm, `spelling` what torch recorded (without the backend).

    Of point-to-point, `source` and `target` are ranks within the group. `compared` is what has to be equal on all
    ranks: the algorithm, and where the algorithm demands it the number of elements and the type.
    """

    backend: str
    spelling: str
    op: str
    numel: int
    results: int
    sizes: tuple[int, ...]
    dtype: str
    shapes: str
    source: int | None = None
    target: int | None = None
    compared: int = 0

    @property
    def is_p2p(self) -> bool:
        return self.op in ("send", "recv")

    @property
    def peer(self) -> int | None:
        """The other side of a send or receive, as a rank within the group."""
        return self.target if self.op == "send" else self.source


@dataclass(slots=True)
class Shared:
    """Grows as dumps are read. `site_of` answers with the user's line of a stack."""

    calls: list[Call] = field(default_factory=list)
    stacks: list[tuple[Frame, ...]] = field(default_factory=lambda: [()])
    members: list[Runs] = field(default_factory=list)
    _calls: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _compared: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _stacks: dict[tuple[Frame, ...], int] = field(default_factory=lambda: {(): 0})
    _members: dict[Runs, int] = field(default_factory=dict)
    _sites: dict[int, Frame | None] = field(default_factory=dict)

    def call(self, raw: Sequence[Any]) -> int:
        """The number of an operation as a worker sent it."""
        key = (*raw[:1], *(tuple(part) if isinstance(part, list) else part for part in raw[1:]))
        number = self._calls.get(key)
        if number is None:
            number = self._calls[key] = len(self.calls)
            self.calls.append(self._made(raw))
        return number

    def _made(self, raw: Sequence[Any]) -> Call:
        name, sizes, numel, results, input_types, output_types, shapes = raw
        backend, _, rest = name.partition(":")
        spelling, _, ends = rest.partition(" ")
        op = algorithm(spelling)
        source, target = _ends(op, ends)
        types = tuple(_TYPES.get(name, name) for name in (output_types if op in _BY_OUTPUT else input_types))
        size = None
        if not _UNEVEN.search(spelling):
            size = numel if op in _BY_INPUT else results if op in _BY_OUTPUT else None
        key = (op, size, types if size is not None else ())
        compared = self._compared.setdefault(key, len(self._compared))
        return Call(backend, spelling, op, numel, results, tuple(sizes), ", ".join(types), shapes, source, target,
                    compared)  # fmt: skip

    def stack(self, raw: Sequence[Sequence[Any]]) -> int:
        """The number of a call stack, innermost frame first."""
        frames = tuple(Frame(file, line, function) for file, line, function in raw)
        number = self._stacks.get(frames)
        if number is None:
            number = self._stacks[frames] = len(self.stacks)
            self.stacks.append(frames)
        return number

    def member_list(self, raw: Sequence[int]) -> int:
        """The number of a member list, sent as first, last, first, last..."""
        runs = tuple(zip(raw[::2], raw[1::2], strict=True))
        number = self._members.get(runs)
        if number is None:
            number = self._members[runs] = len(self.members)
            self.members.append(runs)
        return number

    def site_of(self, stack: int) -> Frame | None:
        """The innermost line of the user's own on this stack."""
        if stack not in self._sites:
            self._sites[stack] = innermost_user(self.stacks[stack], {})
        return self._sites[stack]


def _ends(op: str, text: str) -> tuple[int | None, int | None]:
    """`0->1` of a send and `1<-0` of a receive: source and target."""
    if op == "send" and "->" in text:
        source, _, target = text.partition("->")
    elif op == "recv" and "<-" in text:
        target, _, source = text.partition("<-")
    else:
        return None, None
    both = (source.strip(), target.strip())
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in both):
        return None, None
    return int(both[0]), int(both[1])
