"""Makes one damaged input of each kind from the valid samples."""

from __future__ import annotations

import functools
import json
import pickle
import random
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from dumps.write import to_json
from fuzzing import pickles, samples
from fuzzing.texts import damaged_bytes, damaged_text
from fuzzing.trees import TreeDamage, walk_size
from rankcall.record import layout

Files = dict[str, tuple[bytes, float]]  # path below a folder -> its bytes, and when it was written

_FOREIGN_JSON = (
    "9" * 5_000, "1e999", "-1e999", "NaN", "1E400", "-", "\ud800", '"\\ud800"', "[" * 5_000, "\0", ",", "0x1",
)  # fmt: skip
_MOST_JSON = 200_000  # values; a shared structure written as JSON has no end
_TIMES = (float("nan"), float("inf"), -1e308, 1e308, -1.0, 0.0)
_NUMBERS = (0, 1, -1, 2, 63, 64, 255, 4_095, 4_096, 65_535, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
_RANK_NAMES = (
    "nccl_trace_rank_99999999", "nccl_trace_rank_9999999", "trace_0", "0", "rank_1.json", "rank_\x1b[2J\n_1",
    "\udcff_rank_2", "x" * 200 + "3", "rank_1/rank_1", "nccl_trace_rank_-1", "rank١", "\u202erank_3", "a b/rank 2.pkl",
    "_rank_2.txt",
)  # fmt: skip


def packed(files: Files) -> bytes:
    return msgspec.msgpack.encode({name.encode("utf-8", "surrogateescape"): value for name, value in files.items()})


def unpacked(data: bytes) -> Files:
    found = msgspec.msgpack.decode(data, type=dict[bytes, tuple[bytes, float]])
    return {name.decode("utf-8", "surrogateescape"): value for name, value in found.items()}


# --- dumps ---------------------------------------------------------------------------------------------------------


def dump_file(rng: random.Random) -> bytes:
    way = rng.random()
    if way < 0.55:
        return _damaged_document(rng)
    if way < 0.75:
        return damaged_bytes(rng, rng.choice(samples.dump_files()), samples.dump_files())
    if way < 0.87:
        valid = rng.choice(_pickled())
        return pickles.with_opcodes(rng, valid)
    if way < 0.98:
        return pickles.opcodes(rng)
    return pickles.bomb(rng)


@functools.cache
def _pickled() -> tuple[bytes, ...]:
    return tuple(data for data in samples.dump_files() if data[:1] == b"\x80")


@functools.cache
def _dump_damage(binary: bool) -> TreeDamage:
    return TreeDamage(samples.dump_documents(), binary=binary)


def _damaged_document(rng: random.Random, original: bytes | None = None) -> bytes:
    """A dump as objects, damaged, and written as pickle or JSON again."""
    data = original if original is not None else rng.choice(samples.dump_files())
    try:
        document = samples.document_of(data)
    except (ValueError, EOFError, pickle.UnpicklingError):  # a sample that is damaged on purpose
        return damaged_bytes(rng, data or b"\x80", samples.dump_files())
    as_json = data[:1] == b"{"
    document = _dump_damage(not as_json).damaged(rng, document)
    if as_json:
        return json_bytes(rng, document)
    try:
        return pickle.dumps(document, rng.choice((2, 2, 4, 5)))
    except RecursionError:
        return pickles.bomb(rng)


def json_bytes(rng: random.Random, document: Any) -> bytes:
    """The document as JSON; now and then with a number or a text that only a hand would write."""
    if walk_size(document, _MOST_JSON) >= _MOST_JSON:
        return b"{"
    try:
        text = json.dumps(document, separators=rng.choice(((",", ":"), (", ", ": "))))
    except (ValueError, RecursionError):  # numbers of thousands of digits, or too deep
        return b'{"entries":' + b"[" * 100_000
    if rng.random() < 0.06:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(_FOREIGN_JSON) + text[at + rng.choice((0, 1, 4)) :]
    return text.encode("utf-8", "surrogatepass")


def fleet(rng: random.Random) -> bytes:
    """The dumps of a small job, some of them damaged, under any names, with other files among them."""
    files: Files = {}
    for name, data in rng.choice(samples.fleets()).items():
        way = rng.random()
        if way < 0.35:
            data = _damaged_document(rng, data)
        elif way < 0.42:
            data = dump_file(rng)
        elif way < 0.46:
            data = rng.choice(samples.dump_files())
        elif way < 0.5:
            continue
        files[name if rng.random() < 0.93 else rng.choice(_RANK_NAMES)] = (data, _written(rng))
    if rng.random() < 0.15:
        text = damaged_text(rng, rng.choice(samples.STACKS), samples.STACKS)
        name = rng.choice(("stacks/rank1.txt", "rank_0.txt", "3.json", "trace_rank_1"))
        files[name] = (text.encode("utf-8", "surrogatepass"), _written(rng))
    return packed(files)


def _written(rng: random.Random) -> float:
    begin = 1_790_000_000.0  # of the simulated jobs
    return rng.choice((begin + 3, begin + 100, begin + 900, 0.0, 4e9, begin + rng.random() * 10))


# --- snapshots and reports -------------------------------------------------------------------------------------------


@functools.cache
def _parsed(kind: str) -> tuple[Any, ...]:
    texts = samples.snapshots() if kind == "snapshot" else samples.reports()
    return tuple(json.loads(text) for text in texts)


@functools.cache
def _document_damage(kind: str) -> TreeDamage:
    return TreeDamage(_parsed(kind), binary=False)


def document(rng: random.Random, kind: str) -> bytes:
    """A snapshot or a report as JSON, damaged."""
    if rng.random() < 0.1:
        texts = samples.snapshots() if kind == "snapshot" else samples.reports()
        return damaged_bytes(rng, rng.choice(texts), texts)
    original = rng.choice(_parsed(kind))
    tree = _document_damage(kind).damaged(rng, original)
    if isinstance(tree, dict) and rng.random() < 0.95:
        tree["schema"] = original["schema"]
    return json_bytes(rng, tree)


def snapshot_file(rng: random.Random) -> bytes:
    return document(rng, "snapshot")


def report_file(rng: random.Random) -> bytes:
    return document(rng, "report")


def run_folder(rng: random.Random) -> bytes:
    files: Files = {}
    makers: dict[str, Callable[[], bytes]] = {
        "run.json": lambda: damaged_bytes(rng, samples.RUN_FILE, (samples.RUN_FILE,)),
        "snapshot.json": lambda: document(rng, "snapshot"),
        "report.json": lambda: document(rng, "report"),
    }
    good = {"run.json": (samples.RUN_FILE,), "snapshot.json": samples.snapshots(), "report.json": samples.reports()}
    for name, maker in makers.items():
        way = rng.random()
        if way < 0.1:
            continue
        files[name] = (maker() if way < 0.6 else rng.choice(good[name]), _written(rng))
    if rng.random() < 0.1:
        files[rng.choice(("snapshot.json/x", "a/run.json", "report.json/run.json", "\x1b[2J/run.json"))] = (b"{}", 0.0)
    return packed(files)


def salvage_folder(rng: random.Random) -> bytes:
    """A run that wrote no snapshot: its records, damaged."""
    run = samples.RUN_FILE if rng.random() < 0.7 else damaged_bytes(rng, samples.RUN_FILE, (samples.RUN_FILE,))
    files: Files = {"run.json": (run, 1_000_000.0)}
    for rank, data in enumerate(samples.records()):
        attempt = f"attempt-{rng.choice((0, 0, 0, 1, 10**20, 'x'))}"
        files[f"{attempt}/records/node-{rank}.rec"] = (_damaged_record(rng, data), 1_000_100.0)
        log = damaged_text(rng, _LOG, samples.STACKS).encode("utf-8", "surrogatepass")
        files[f"{attempt}/logs/node-rank{rank}.stderr"] = (log, 1_000_100.0)
    return packed(files)


_LOG = """starting
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 57, in main
[rank0]:     loss.backward()
[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:9159
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
Fatal Python error: Segmentation fault
"""


def log_file(rng: random.Random) -> bytes:
    return damaged_text(rng, _LOG, samples.STACKS).encode("utf-8", "surrogatepass")


# --- records ---------------------------------------------------------------------------------------------------------

_PARTS = (
    (0, layout.HEADER_SIZE), (layout.BLOB_AT["identity"], 256), (layout.BLOB_AT["note"], 256),
    (layout.BLOB_AT["handled"], 256), (layout.SLOTS_AT, 4 * layout.SLOT_SIZE),
    (layout.RING_AT, 130 * layout.EVENT_SIZE), (layout.STRINGS_AT, 1_200),
)  # fmt: skip


def record(rng: random.Random) -> bytes:
    return _damaged_record(rng, rng.choice(samples.records()))


def _damaged_record(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    way = rng.random()
    if way < 0.3:
        _damage_blob(rng, changed)
    elif way < 0.5:
        _damage_strings(rng, changed)
    elif way < 0.53:
        return bytes(damaged_bytes(rng, data, samples.records()))
    if way > 0.3 or rng.random() < 0.3:
        for _ in range(rng.choice((1, 2, 5, 40))):
            start, size = rng.choice(_PARTS)
            at = min(start + 8 * rng.randrange(size // 8), len(changed) - 8)
            kind = rng.random()
            if kind < 0.5:
                changed[at : at + 8] = struct.pack("<q", rng.choice(_NUMBERS))
            elif kind < 0.7:
                changed[at : at + 8] = struct.pack("<d", rng.choice(_TIMES))
            else:
                changed[at + rng.randrange(8)] = rng.randrange(256)
    return bytes(changed)


def _damage_blob(rng: random.Random, changed: bytearray) -> None:
    """Other JSON in an identity, an exit note or the handled exceptions."""
    name = rng.choice(list(layout.BLOBS))
    at, half = layout.BLOB_AT[name], layout.BLOBS[name]
    generation, *lengths = layout.BLOB_HEAD.unpack_from(changed, at)
    which = generation & 1
    start = at + 64 + which * half
    text = bytes(changed[start : start + lengths[which]])
    tree = json.loads(text) if text else {"kind": "exit", "time": 1.0, "code": 2, "site": ["f.py", 3, "main"]}
    new = json_bytes(rng, TreeDamage([tree], binary=False).damaged(rng, tree))
    if rng.random() < 0.02:
        new = b"[" * half
    new = new[:half]
    changed[start : start + len(new)] = new
    lengths[which] = len(new)
    layout.BLOB_HEAD.pack_into(changed, at, max(generation, 1), *lengths)


_GROUP = {"number": 0, "name": "0", "description": "pg", "backend": "gloo", "members": [[0, 1]], "incarnation": 0}
_MEMBERS = ([[0, 10**9]], [[0, 999_999]], [[5, 1]], [[-9, 9]], [[0, 3]] * 500, [[2**62, 2**62]])


def _damage_strings(rng: random.Random, changed: bytearray) -> None:
    """The table of strings anew: damaged facts of groups, sites and names, some of them many times."""
    strings = []
    at = layout.STRINGS_AT
    end = at + layout.COUNTER.unpack_from(changed, layout.COUNTER_INDEX["strings_end"])[0]
    while at + layout.STRING_HEAD.size <= end:
        length, tag = layout.STRING_HEAD.unpack_from(changed, at)
        at += layout.STRING_HEAD.size
        strings.append((tag, bytes(changed[at : at + length])))
        at += length
    for _ in range(rng.choice((1, 2, 4))):
        number = rng.randrange(len(strings))
        tag, text = strings[number]
        if tag == layout.TAG_GROUP:
            fact: Any = dict(_GROUP)
            if rng.random() < 0.3:
                fact["members"] = rng.choice(_MEMBERS)
            if rng.random() < 0.5:
                fact = TreeDamage([fact], binary=False).damaged(rng, fact)
            text = json_bytes(rng, fact)
        else:
            text = damaged_bytes(rng, text, (text, b"f.py\x00\xc2\xb2\x00main", b"f.py\x00" + b"9" * 3_000 + b"\x00m"))
        strings[number : number + 1] = [(rng.choice((tag, tag, tag, 1, 2, 3)), text)] * rng.choice((1, 1, 1, 3, 600))
    table = bytearray()
    for tag, text in strings:
        piece = layout.STRING_HEAD.pack(len(text) & 0xFFFF, tag) + text[:0xFFFF]
        if len(table) + len(piece) > layout.STRINGS_SIZE:
            break
        table += piece
    changed[layout.STRINGS_AT : layout.STRINGS_AT + len(table)] = table
    layout.COUNTER.pack_into(changed, layout.COUNTER_INDEX["strings_end"], len(table))


# --- stacks, and the flight recorder of a living rank ----------------------------------------------------------------


def stack_text(rng: random.Random, sample: str) -> bytes:
    text = damaged_text(rng, sample, samples.STACKS)
    data = text.encode("utf-8", "surrogatepass")
    return damaged_bytes(rng, data, (data,)) if rng.random() < 0.05 else data


def py_spy_json(rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        return stack_text(rng, samples.PY_SPY_JSON)
    tree = json.loads(samples.PY_SPY_JSON)
    data = json_bytes(rng, TreeDamage([tree], binary=False).damaged(rng, tree))
    return data if rng.random() < 0.8 else data + b"\n" + samples.PY_SPY_JSON.encode() * rng.choice((1, 3))


def stack_file(rng: random.Random) -> bytes:
    """Any form, or several in one file."""
    data = py_spy_json(rng) if rng.random() < 0.1 else stack_text(rng, rng.choice(samples.STACKS))
    return packed({rng.choice(samples.STACK_NAMES): (data, 0.0)})


def stack_folder(rng: random.Random) -> bytes:
    """The stacks of a job, a file a rank or not, some of them damaged; now and then a dump beside them."""
    files: Files = {}
    for rank in range(rng.choice((1, 2, 3, 5))):
        sample = rng.choice(samples.STACKS)
        if rng.random() < 0.7:
            sample = sample.replace("4711", str(4_711 + rank)).replace("RANK=6", f"RANK={rank}")
        data = stack_text(rng, sample) if rng.random() < 0.6 else sample.encode()
        names = (f"rank{rank}.txt", f"stacks_{rank}.txt", f"node-{rank}/rank_{rank}.json", f"{rank}/py-spy.out")
        name = rng.choice(names)
        files[name if rng.random() < 0.9 else rng.choice(_RANK_NAMES)] = (data, _written(rng))
    if rng.random() < 0.2:
        files["nccl_trace_rank_0"] = (rng.choice(samples.dump_files()), _written(rng))
    return packed(files)


@functools.cache
def _recorder_documents() -> tuple[Any, ...]:
    """As torch writes them in JSON."""
    return tuple(json.loads(to_json(tree)) for tree in samples.dump_documents() if tree.get("entries"))


@functools.cache
def _recorder_damage() -> TreeDamage:
    return TreeDamage(_recorder_documents(), binary=False)


def recorder_json(rng: random.Random) -> bytes:
    data = json_bytes(rng, _recorder_damage().damaged(rng, rng.choice(_recorder_documents())))
    return damaged_bytes(rng, data, (data,)) if rng.random() < 0.1 else data
