"""A record may hold anything: reading it never raises but at opening, and never takes long."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from rankcall.diagnose.readers.records import Record, expand
from rankcall.record import layout
from rankcall.record.recorder import Recorder
from rankcall.record.writer import Writer
from rankcall.watch.looks import Look


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A sound record with a few events in it."""
    path = tmp_path / "host-1-2.rec"
    recorder = Recorder()
    recorder.start(Writer(str(path), os.getpid(), 7))
    recorder.identify(host="node", claimed_rank=3)
    for step in range(20):
        site = recorder.site(1)
        recorder.event(
            layout.KIND["collective"], site, compared=True, op=recorder.name("all_reduce"), group=0, seq=step + 1
        )
        recorder.change(layout.PHASE["collective"], site, layout.WAIT["collective"], step)
        recorder.count("backwards")
    assert recorder.writer is not None
    recorder.writer.write_blob("note", {"kind": "exit", "time": 1.0, "code": 2, "site": ["f.py", 3, "main"]})
    return path


def read_everything(record: Record) -> None:
    groups = record.groups()
    record.ring(groups)
    for slot in record.slots():
        record.wait(slot, groups)
        record.site(slot.phase_site)
    record.counters()
    record.loop_step()
    record.exit_note()
    record.handled()
    record.identity()


def test_what_was_written_is_read(written: Path) -> None:
    record = Record(written)
    assert record.identity()["claimed_rank"] == 3
    ring = record.ring(record.groups())
    assert [event.seq for event in ring] == list(range(1, 21))
    assert [event.place for event in ring] == list(range(20))
    assert record.counters().backwards == 20
    (slot,) = record.slots()
    wait = record.wait(slot, [])
    assert wait is not None and (wait.kind, wait.op, wait.seq) == ("collective", "all_reduce", 20)
    assert wait.site is not None and wait.site.file == __file__
    note = record.exit_note()
    assert note is not None and (note.kind, note.code, note.site and note.site.line) == ("exit", 2, 3)


def test_the_ring_forgets_the_oldest(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.start(Writer(str(tmp_path / "r.rec"), 1, 1))
    for number in range(layout.RING_EVENTS + 10):
        recorder.event(layout.KIND["step"], 0, compared=True, seq=number)
    ring = Record(tmp_path / "r.rec").ring([])
    assert (len(ring), ring[0].index, ring[-1].index) == (layout.RING_EVENTS, 10, layout.RING_EVENTS + 9)


@pytest.mark.parametrize("data", [b"", b"RANKCALL", b"\0" * layout.SIZE, b"RANKCALL" + b"\xff" * (layout.SIZE - 8)])
def test_what_is_no_record_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.rec"
    path.write_bytes(data)
    with pytest.raises(ValueError):
        Record(path)


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_record_is_read_as_far_as_it_goes(written: Path, seed: int) -> None:
    draw = random.Random(seed)
    data = bytearray(written.read_bytes())
    for _ in range(draw.choice([1, 20, 2000])):
        at = draw.randrange(16, len(data))
        length = draw.choice([1, 8, 200])
        data[at : at + length] = bytes(draw.choice([0, 255, draw.randrange(256)]) for _ in range(length))
    written.write_bytes(bytes(data[: layout.SIZE]))
    record = Record(written)
    read_everything(record)
    look = Look(written)
    look.look(0.25)
    look.look(0.25)


def test_a_string_table_that_is_full_still_records(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path / "r.rec"), 1, 1)
    for number in range(5000):
        writer.intern(number, f"{number:>100}", layout.TAG_NAME)
    record = Record(tmp_path / "r.rec")
    assert record.text(1).strip() == "0"
    assert record.text(4999) == ""


def test_claimed_members_are_bounded() -> None:
    assert len(expand([(0, 10**12)])) == 131_072


def test_a_blob_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path / "r.rec"), 1, 1)
    writer.write_blob("identity", {"rank": 1})
    writer.write_blob("identity", {"rank": "x" * 100_000})
    assert Record(tmp_path / "r.rec").identity() == {"rank": 1}
