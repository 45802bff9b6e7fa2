"""One dump as Python objects -> columns of numbers. Runs in a worker, and imports nothing but the standard library.

The objects come from an untrusted file: dicts, lists, tuples, texts, numbers and nothing else, but in any shape and
of any depth, and one object may stand in a million places. So nothing is walked by recursion: whole columns are
taken, their types checked level by level, and every element counted against a budget before anything copies it.

The fields are those of torch's writer (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp), versions 2.0 to 2.10.
`pg_status` is left alone: the numbers of sends and of collectives stand in one field there, so it says nothing sure of
a group that has both, and nothing that the entries do not say of one that has not.
"""

from __future__ import annotations

import marshal
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain, compress, repeat
from operator import itemgetter, sub
from typing import Any

MOST_ENTRIES = 500_000
MOST_NUMBERS = 8_000_000  # sizes and type names of all entries of one dump
MOST_FRAMES = 60  # of one call stack; the innermost are kept
MOST_TEXT = 400  # characters of a name
MOST_GROUPS = 1024
MOST_OPEN = 20_000
_SMALLEST_ENTRY = 32  # bytes of the file: a pickle may name one entry a million times, a byte each
_ALWAYS_ALLOWED = 1000
_MOST_SHAPES, _LONGEST_TYPE = 16, 32  # of one operation, kept to be shown
MOST_MEMBERS = 1 << 20

COMPLETED, STARTED, RETIRED, P2P = 1, 2, 4, 8  # bits of an entry's flags
_STATES = {"completed": COMPLETED | STARTED, "started": STARTED}
_FIELDS = (
    "pg_id", "process_group", "collective_seq_id", "profiling_name", "input_sizes", "output_sizes", "input_dtypes",
    "output_dtypes", "state", "retired", "time_created_ns", "time_discovered_completed_ns", "is_p2p",
)  # fmt: skip
_CALL_FIELDS = ("profiling_name", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes")
_MAX = (1 << 63) - 1
# An entry's flags -> 1: done, 0: open, 2: a point-to-point call that is done. Its number is that of the collective
# before it, which says nothing.
_DONE = bytes((2 if flags & P2P else 1) if flags & COMPLETED else 0 for flags in range(256))
# gloo's state never leaves `scheduled`: there `retired` is the only sign.
_DONE_ON_GLOO = bytes((2 if flags & P2P else 1) if flags & (RETIRED | COMPLETED) else 0 for flags in range(256))
_NONE = type(None)


class NotADump(Exception):
    """The file holds something else, or a dump that is too large; the text says what."""


class Tables:
    """What the dumps of one worker share: a text is sent to the parent once, then called by its number."""

    def __init__(self) -> None:
        self.calls: dict[bytes, int] = {}
        self.stacks: dict[tuple[tuple[str, int, str], ...], int] = {(): 0}
        self.members: dict[str, int] = {}
        self.new_calls: list[list[Any]] = []
        self.new_stacks: list[list[tuple[str, int, str]]] = []
        self.new_members: list[list[int]] = []

    def take_new(self) -> dict[str, Any]:
        """The entries that were added since the last time."""
        new = {"calls": self.new_calls, "stacks": self.new_stacks, "members": self.new_members}
        self.new_calls, self.new_stacks, self.new_members = [], [], []
        return new


def reduce(dump: Any, tables: Tables, size: int = 1 << 40, ends: bool = True) -> tuple[dict[str, Any], bytes]:
    """A header (JSON-able) and the columns behind it, in the order of header["columns"] (name, type code, count).
    `size` is that of the file, in bytes; `ends`: with the times of completion, which only a timeline needs.

    Raises NotADump.
    """
    if type(dump) is not dict:
        raise NotADump("it holds no dump")
    entries: Any = dump.get("entries")
    if entries is None and "version" in dump and ("pg_config" in dump or "pg_status" in dump):
        entries = []  # so the JSON writer leaves out an empty ring
    if type(entries) not in (list, tuple):
        raise NotADump("it has no list of entries")
    if len(entries) > MOST_ENTRIES:
        raise NotADump(f"it has {len(entries)} entries, more than {MOST_ENTRIES}")
    kept = [entry for entry in entries if type(entry) is dict]
    if len(entries) > max(size, 0) // _SMALLEST_ENTRY + _ALWAYS_ALLOWED:
        raise NotADump(f"its {len(entries)} entries cannot all stand in a file of its size")
    columns = _Columns(kept, tables, ends)
    header = {
        "version": _text(dump.get("version")),
        "library": _text(dump.get("comm_lib_version") or dump.get("nccl_version")),
        "rank": _own_rank(dump),
        "host": _text(dump.get("hostname") or dump.get("host_name")),
        "entries": columns.count,
        "left_out": len(entries) - columns.count,
        "first_record": columns.first_record,
        "gap": columns.usual_gap,
        "timeout_ms": columns.timeout_ms,
        "config": _config(dump.get("pg_config"), tables),
        "groups": columns.groups,  # [pg_id, name, description, backend] by its number in the column
        **_summary(columns),
        "tables": tables.take_new(),
        "columns": [(name, column.typecode, len(column)) for name, column in columns.arrays.items()],
    }
    return header, b"".join(column.tobytes() for column in columns.arrays.values())


def _text(value: Any) -> str:
    return _clean(value[:MOST_TEXT]) if type(value) is str else str(value) if type(value) is float else ""


def _clean(text: str) -> str:
    """Without lone surrogates, which no file and no terminal takes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")[:MOST_TEXT]


def _own_rank(dump: dict[Any, Any]) -> int | None:
    """Some writers of dumps put the rank into them."""
    for key in ("rank", "global_rank"):
        value = dump.get(key)
        if type(value) is int and 0 <= value < MOST_MEMBERS:
            return value
    return None


class _Columns:
    """The entries as arrays of equal length, in the order they were recorded."""

    def __init__(self, entries: list[dict[Any, Any]], tables: Tables, ends: bool) -> None:
        raw = _fields(entries)
        if not _well_formed(raw):
            entries = [entry for entry in entries if _well_formed(_fields([entry]))]
            raw = _fields(entries)
            if not _well_formed(raw):  # each alone is within the budget, but not all together
                raise NotADump("its entries hold more numbers than any dump does")
        self.count = len(raw["pg_id"])
        self.groups: list[list[Any]] = []
        created = raw["time_created_ns"]
        groups, flags = self._group_numbers(raw), _flags(raw)
        _spread_batches(groups, raw["collective_seq_id"], flags, raw["profiling_name"])
        self.arrays: dict[str, array[int]] = {
            "group": array("I", groups),
            "seq": array("q", raw["collective_seq_id"]),
            "call": array("I", _calls(raw, tables)),
            "flags": array("B", flags),
            "created": array("q", created),
            "stack": array("I", _stacks([entry.get("frames") for entry in entries], tables)),
        }
        if ends:
            self.arrays["ended"] = array("q", _times(raw["time_discovered_completed_ns"]))
        first = entries[0].get("record_id") if entries else None
        self.first_record = first if type(first) is int and 0 <= first <= _MAX else None
        self.usual_gap = _usual_gap(created)
        limit = entries[-1].get("timeout_ms") if entries else None  # of the newest operation: groups have their own
        self.timeout_ms = limit if type(limit) is int and 0 < limit <= _MAX else None

    def _group_numbers(self, raw: dict[str, Sequence[Any]]) -> list[int]:
        keys = list(zip(raw["pg_id"], map(tuple, raw["process_group"]), raw["profiling_name"], strict=True))
        numbers: dict[tuple[int, str, str, str], int] = {}
        known = {}
        for key in dict.fromkeys(keys):
            number, (name, description), call = key
            whole = (number, _clean(name), _clean(description), _clean(call.partition(":")[0]))
            known[key] = numbers.setdefault(whole, len(numbers))
        if len(numbers) > MOST_GROUPS:
            raise NotADump(f"its entries name {len(numbers)} groups")
        self.groups = [list(key) for key in numbers]
        return list(map(known.__getitem__, keys))


def _fields(entries: list[dict[Any, Any]]) -> dict[str, Sequence[Any]]:
    """One column a field; None where an entry lacks it."""
    try:
        columns = zip(*map(itemgetter(*_FIELDS), entries), strict=True)
        found: dict[str, Sequence[Any]] = dict(zip(_FIELDS, columns, strict=True)) if entries else {}
    except KeyError:
        found = {}
    # Not all versions write all of them.
    return found or {name: [entry.get(name) for entry in entries] for name in _FIELDS}


def _well_formed(raw: dict[str, Sequence[Any]]) -> bool:
    """True when every entry has what is needed, in its right type."""
    if not raw["pg_id"]:
        return True
    for name in ("pg_id", "time_created_ns", "collective_seq_id"):
        try:
            array("q", raw[name])
        except (TypeError, OverflowError):
            return False
    if set(map(type, raw["profiling_name"])) != {str} or max(map(len, raw["profiling_name"])) > MOST_TEXT:
        return False
    groups = raw["process_group"]
    if not set(map(type, groups)) <= {tuple, list} or set(map(len, groups)) != {2}:
        return False
    names = list(chain.from_iterable(groups))
    if set(map(type, names)) != {str} or max(map(len, names)) > MOST_TEXT:
        return False
    return (
        all(set(map(type, raw[name])) <= {bool, _NONE} for name in ("retired", "is_p2p"))
        and set(map(type, raw["state"])) <= {str, _NONE}
        and all(_lists_of_lists(raw[name]) for name in ("input_sizes", "output_sizes"))
        and all(_lists_of(raw[name], str) for name in ("input_dtypes", "output_dtypes"))
    )


def _lists_of_lists(column: Sequence[Any]) -> bool:
    """Every element is a list of lists of integers (or absent), and all of them together are within the budget."""
    present = _present_lists(column)
    return present is not None and _lists_of(list(chain.from_iterable(present)), int)


def _lists_of(column: Sequence[Any], kind: type) -> bool:
    present = _present_lists(column)
    if present is None or not set(map(type, chain.from_iterable(present))) <= {kind}:
        return False
    return kind is not str or max(map(len, set(chain.from_iterable(present))), default=0) <= MOST_TEXT


def _present_lists(column: Sequence[Any]) -> Sequence[Any] | None:
    kinds = set(map(type, column))
    if not kinds <= {list, tuple, _NONE}:
        return None
    present = [item for item in column if item is not None] if _NONE in kinds else column
    return present if sum(map(len, present)) <= MOST_NUMBERS else None


def _flags(raw: dict[str, Sequence[Any]]) -> list[int]:
    keys = list(zip(raw["state"], raw["retired"], raw["is_p2p"], raw["profiling_name"], strict=True))
    known = {
        (state, retired, is_p2p, name): _STATES.get(state, 0)
        | (RETIRED if retired else 0)
        | (P2P if is_p2p or _direction(name) else 0)
        for state, retired, is_p2p, name in set(keys)
    }
    flags = list(map(known.__getitem__, keys))
    if None in raw["is_p2p"]:
        _mark_batches(flags, raw["profiling_name"])
    return flags


def _times(column: Sequence[Any]) -> Sequence[int]:
    """Nanoseconds; 0 for none (which JSON writes as 0 and the pickle as None)."""
    return [time if type(time) is int and 0 < time <= _MAX else 0 for time in column]


def _mark_batches(flags: list[int], names: Sequence[str]) -> None:
    """Before version 2.3 nothing says whether a `coalesced` entry ends a batch of sends or one of collectives: what
    stands before it does."""
    for at, name in enumerate(names):
        if at and name.endswith(":coalesced") and flags[at - 1] & P2P:
            flags[at] |= P2P


def _spread_batches(groups: list[int], numbers: Sequence[int], flags: list[int], names: Sequence[str]) -> None:
    """The calls inside a batch have no events of their own and stay `scheduled` for ever: they are as far as the
    `coalesced` entry that ends it."""
    ends = [at for at, name in enumerate(names) if name.endswith(":coalesced")] if _has_batches(names) else []
    for end in ends:
        reached = flags[end] & (COMPLETED | STARTED | RETIRED)
        at = end - 1
        while at >= 0 and groups[at] == groups[end] and not names[at].endswith(":coalesced"):
            if (flags[at] ^ flags[end]) & P2P or (numbers[at] != numbers[end] and not flags[end] & P2P):
                break
            if flags[at] & (COMPLETED | RETIRED):
                break  # a call of its own, before the batch
            flags[at] |= reached
            at -= 1


def _has_batches(names: Sequence[str]) -> bool:
    return any(name.endswith(":coalesced") for name in set(names))


def _direction(name: str) -> bool:
    return name.partition(":")[2].partition(" ")[0] in ("send", "recv")


def _calls(raw: dict[str, Sequence[Any]], tables: Tables) -> list[int]:
    """Each entry's operation, sizes and types as a number of the shared table."""
    known = tables.calls
    rows = list(zip(*(raw[name] for name in _CALL_FIELDS), strict=True))
    # The types were checked: lists of bounded lists of numbers and short texts. marshal makes a key of them fast.
    keys = list(map(marshal.dumps, rows, repeat(2)))
    numbers: list[int | None] = list(map(known.get, keys))
    if None in numbers:
        for key, row in dict(zip(keys, rows, strict=True)).items():
            if key not in known:
                tables.new_calls.append(_call(*row))
                known[key] = len(known)
        return list(map(known.__getitem__, keys))
    return numbers  # type: ignore[return-value]


def _call(name: str, inputs: Any, outputs: Any, input_types: Any, output_types: Any) -> list[Any]:
    """[name, elements of each input, of all inputs, of all outputs, input types, output types, shapes in words]."""
    sizes, results = _numels(inputs), _numels(outputs)
    shapes = [[max(min(size, _MAX), -1) for size in shape[:8]] for shape in (inputs or ())[:4]]
    return [
        _clean(name),
        sizes[:_MOST_SHAPES],
        min(sum(sizes), _MAX),
        min(sum(results), _MAX),
        _types(input_types),
        _types(output_types),
        str(shapes)[:80] if shapes else "",
    ]


def _types(names: Any) -> list[str]:
    return [_clean(name[:_LONGEST_TYPE]) for name in dict.fromkeys((names or ())[:_MOST_SHAPES])][:4]


def _numels(tensors: Any) -> list[int]:
    found = []
    for sizes in tensors or ():
        product = 1
        for size in sizes[:64]:
            product = min(product * max(min(size, _MAX), 0), _MAX)
        found.append(product)
    return found


def _stacks(column: Sequence[Any], tables: Tables) -> list[int]:
    """Each entry's call stack as a number of the shared table; torch shares one list among equal stacks."""
    if not any(column):
        return [0] * len(column)
    if not set(map(type, column)) <= {list, tuple, _NONE}:
        column = [frames if type(frames) in (list, tuple) else None for frames in column]
    if sum(len(frames) for frames in column if frames is not None) > MOST_NUMBERS:
        raise NotADump("its call stacks are larger than those of any dump")
    # torch shares the frames of equal stacks, so that a stack is known by the identities of its frames.
    keys = [() if frames is None else tuple(map(id, frames[:MOST_FRAMES])) for frames in column]
    seen: dict[int, tuple[str, int, str]] = {}
    known = {key: _stack(frames, seen, tables) for key, frames in dict(zip(keys, column, strict=True)).items()}
    return list(map(known.__getitem__, keys))


def _stack(frames: Any, seen: dict[int, tuple[str, int, str]], tables: Tables) -> int:
    if not frames:
        return 0
    found = []
    for frame in frames[:MOST_FRAMES]:
        known = seen.get(id(frame))
        if known is None:
            if type(frame) is not dict:
                continue
            line = frame.get("line")
            known = (_text(frame.get("filename")), line if type(line) is int and 0 <= line < 1 << 31 else 0,
                     _text(frame.get("name")))  # fmt: skip
            seen[id(frame)] = known
        found.append(known)
    key = tuple(found)
    number = tables.stacks.get(key)
    if number is None:
        number = tables.stacks[key] = len(tables.stacks)
        tables.new_stacks.append(found)
    return number


def _usual_gap(created: Sequence[int]) -> float:
    """A long pause between operations as they occur in this ring, in seconds: one in two hundred is longer."""
    gaps = sorted(map(sub, created[1:], created[:-1]), reverse=True)
    return max(0, gaps[min(len(gaps) - 1, len(gaps) // 200 + 1)]) / 1e9 if gaps else 0.0


def _summary(columns: _Columns) -> dict[str, Any]:
    """By group number: the first and last number that the ring holds, and the last one that is done. `open`: the
    places of the entries that are not done, the newest of them when there are very many."""
    arrays = columns.arrays
    gloo = {number for number, group in enumerate(columns.groups) if group[3] == "gloo"}
    flags = arrays["flags"].tobytes()
    done = flags.translate(_DONE)
    if gloo:
        by_retired = flags.translate(_DONE_ON_GLOO)
        done = bytes(
            late if group in gloo else early
            for early, late, group in zip(done, by_retired, arrays["group"], strict=True)
        )
    groups, numbers = arrays["group"], arrays["seq"]
    collective = list(map((1).__eq__, done))
    return {
        "first": _by_group(zip(reversed(groups), reversed(numbers), strict=True)),
        "last": _by_group(zip(groups, numbers, strict=True)),
        "done": _by_group(zip(compress(groups, collective), compress(numbers, collective), strict=True)),
        "open": list(compress(range(columns.count), map((0).__eq__, done)))[-MOST_OPEN:],
    }


def _by_group(pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The last number given for each group."""
    return [[group, number] for group, number in dict(pairs).items()]


def _config(config: Any, tables: Tables) -> list[list[Any]]:
    """[name, description, number of its member list]; the members stand as text in the dump."""
    if type(config) is not dict:
        return []
    found: list[list[Any]] = []
    for name, about in list(config.items())[:MOST_GROUPS]:
        if type(name) is not str or type(about) is not dict:
            continue
        members: Any = about.get("ranks")
        text = members if type(members) is str else None
        if type(members) in (list, tuple) and len(members) <= MOST_MEMBERS and set(map(type, members)) <= {int}:
            text = str(list(members))
        if text is None:
            continue
        number = tables.members.get(text)
        if number is None:
            runs = _runs(text)
            if runs is None:
                continue
            number = tables.members[text] = len(tables.members)
            tables.new_members.append(runs)
        found.append([_text(name), _text(about.get("desc")), number])
    return found


def _runs(text: str) -> list[int] | None:
    """`[0, 1, 2, 5]` as first, last, first, last...; None for anything else."""
    if len(text) > 12 * MOST_MEMBERS or not text.startswith("[") or not text.endswith("]"):
        return None
    inside = text[1:-1].strip()
    if not inside:
        return []
    try:
        ranks = sorted(set(map(int, inside.split(","))))
    except ValueError:
        return None
    if ranks[0] < 0 or ranks[-1] >= MOST_MEMBERS:
        return None
    runs = [ranks[0], ranks[0]]
    for rank in ranks[1:]:
        if rank == runs[-1] + 1:
            runs[-1] = rank
        else:
            runs += (rank, rank)
    return runs
