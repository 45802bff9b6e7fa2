"""Joins the watchers of several nodes: each leaves its snapshot in the launchers' own rendezvous store, and reads
the others' when something stands still. Nothing listens anywhere for it, and nothing is trusted that does not decode
as a snapshot.
"""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from rankcall.errors import RankcallError
from rankcall.snapshot import Snapshot, snapshot_from_json, snapshot_to_json

POLL = 0.5  # seconds between two looks at the store: one small request each
FRESH = 4.0  # a snapshot of another node that is older says nothing about now
_RING_SENT = 1024  # events of each rank that travel
_MOST_BYTES = 64 << 20


class Store(Protocol):
    """The part of torch's c10d Store that is used."""

    def set(self, key: str, value: bytes, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def add(self, key: str, amount: int, /) -> int: ...


class Meeting:
    """One node's place among `nodes`. Its own thread talks to the store, so that a dead one blocks nobody."""

    def __init__(self, store: Store, node: int, nodes: int, attempt: int, take: Callable[[], Snapshot]) -> None:
        self._store, self._node, self._nodes, self._take = store, node, nodes, take
        self._prefix = f"rankcall/{attempt}/"
        self._others: dict[int, Snapshot] = {}
        self._received: dict[int, float] = {}
        self._wish = threading.Event()
        self._closed = False
        self._answered = 0
        self._thread = threading.Thread(target=self._run, name="rankcall-join", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Ask every node for its snapshot; the answers come in with `others`, within about a second."""
        self._wish.set()

    def others(self, since: float | None = None) -> list[Snapshot]:
        """What the other nodes have answered, fresh ones only."""
        limit = time.monotonic() - FRESH if since is None else since
        return [self._others[node] for node in sorted(self._others) if self._received[node] >= limit]

    def wait_for_others(self, seconds: float) -> list[Snapshot]:
        """Ask, and wait until all have answered or the time is over."""
        begin = time.monotonic()
        self.ask()
        while time.monotonic() - begin < seconds and self._thread.is_alive():
            found = self.others(since=begin)
            if len(found) == self._nodes - 1:
                return found
            time.sleep(0.05)
        return self.others()

    def close(self) -> None:
        self._closed = True
        self._wish.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._closed:
            wished = self._wish.wait(POLL)
            self._wish.clear()
            if self._closed:
                return
            try:
                self._turn(wished)
            except RankcallError:
                continue
            except Exception:  # the store is gone with its node, or closing: what is known stays
                time.sleep(POLL)

    def _turn(self, wished: bool) -> None:
        asked = self._store.add(self._prefix + "ask", 1 if wished else 0)
        if asked != self._answered:
            self._answered = asked
            self._store.set(self._prefix + f"node-{self._node}", _packed(self._take()))
        if asked:
            self._read_others()

    def _read_others(self) -> None:
        for node in range(self._nodes):
            key = self._prefix + f"node-{node}"
            if node == self._node or not self._store.check([key]):
                continue
            data = bytes(self._store.get(key))
            before = self._others.get(node)
            snapshot = _unpacked(data, key)
            if before is None or snapshot.taken_at != before.taken_at:
                self._others[node] = snapshot
                self._received[node] = time.monotonic()


def _packed(snapshot: Snapshot) -> bytes:
    short = [msgspec.structs.replace(process, ring=process.ring[-_RING_SENT:]) for process in snapshot.processes]
    return zlib.compress(snapshot_to_json(msgspec.structs.replace(snapshot, processes=tuple(short))), 1)


def _unpacked(data: bytes, name: str) -> Snapshot:
    unpacker = zlib.decompressobj()
    with contextlib.suppress(zlib.error):
        return snapshot_from_json(unpacker.decompress(data, _MOST_BYTES), name)
    raise RankcallError(f"{name} in the rendezvous store is no snapshot.")


def merged(own: Snapshot, others: Sequence[Snapshot]) -> Snapshot:
    """One snapshot of all nodes: this node's, with the others' processes and sources."""
    if not others:
        return own
    known = {(process.host, process.pid, process.start_time) for process in own.processes}
    processes = list(own.processes)
    sources = dict(own.sources)
    for other in others:
        processes += [p for p in other.processes if (p.host, p.pid, p.start_time) not in known]
        known |= {(p.host, p.pid, p.start_time) for p in other.processes}
        sources.update({name: text for name, text in other.sources.items() if name not in sources})
    return msgspec.structs.replace(own, processes=tuple(processes), sources=sources)
