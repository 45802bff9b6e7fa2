"""Nodes meet in the rendezvous store: what one knows, the others learn when they ask."""

from __future__ import annotations

import threading
import time

from rankcall.snapshot import Process, Snapshot
from rankcall.watch.joining import Meeting, merged


class MemoryStore:
    """The store's four calls, in memory; `broken` makes each of them raise, as when its node is gone."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.counts: dict[str, int] = {}
        self.broken = False
        self.lock = threading.Lock()

    def _check(self) -> None:
        if self.broken:
            raise RuntimeError("Connection reset by peer")

    def set(self, key: str, value: bytes, /) -> None:
        self._check()
        self.values[key] = value

    def get(self, key: str, /) -> bytes:
        self._check()
        return self.values[key]

    def check(self, keys: list[str], /) -> bool:
        self._check()
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int, /) -> int:
        self._check()
        with self.lock:
            self.counts[key] = self.counts.get(key, 0) + amount
            return self.counts[key]


def snapshot_of(host: str, rank: int) -> Snapshot:
    return Snapshot(
        taken_at=time.time(), processes=(Process(host, 100 + rank, launcher_rank=rank),), sources={host: "x"}
    )


def meetings(store: MemoryStore, nodes: int) -> list[Meeting]:
    return [
        Meeting(store, node, nodes, 0, lambda node=node: snapshot_of(f"host-{node}", node)) for node in range(nodes)
    ]


def test_each_node_gets_what_the_others_know() -> None:
    met = meetings(MemoryStore(), 3)
    try:
        found = met[0].wait_for_others(5.0)
        assert [snapshot.processes[0].host for snapshot in found] == ["host-1", "host-2"]
        whole = merged(snapshot_of("host-0", 0), found)
        assert [process.rank for process in whole.processes] == [0, 1, 2]
        assert sorted(whole.sources) == ["host-0", "host-1", "host-2"]
    finally:
        for meeting in met:
            meeting.close()


def test_nothing_is_sent_before_somebody_asks() -> None:
    store = MemoryStore()
    met = meetings(store, 2)
    try:
        time.sleep(1.2)
        assert store.values == {}
        assert met[0].others() == []
    finally:
        for meeting in met:
            meeting.close()


def test_a_store_that_died_with_its_node_blocks_nobody() -> None:
    store = MemoryStore()
    met = meetings(store, 2)
    try:
        assert met[0].wait_for_others(5.0)
        store.broken = True
        begin = time.monotonic()
        met[0].wait_for_others(0.5)
        assert time.monotonic() - begin < 2
    finally:
        for meeting in met:
            meeting.close()


def test_garbage_in_the_store_is_not_taken_for_a_snapshot() -> None:
    store = MemoryStore()
    meeting = Meeting(store, 0, 3, 0, lambda: snapshot_of("host-0", 0))
    try:
        store.values["rankcall/0/node-1"] = b"\x80\x04K\x01."
        store.values["rankcall/0/node-2"] = b""
        assert meeting.wait_for_others(1.0) == []
    finally:
        meeting.close()


def test_processes_that_are_known_already_are_not_doubled() -> None:
    own = snapshot_of("host-0", 0)
    assert len(merged(own, [own]).processes) == 1
