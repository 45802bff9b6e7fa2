"""The readers that get damaged inputs, each with what its answer must fulfil. A reader answers, or refuses in one
sentence; anything else it raises is a fault."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import threading
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from unittest import mock

import msgspec

from fuzzing import inputs, samples
from rankcall.diagnose import diagnose
from rankcall.diagnose.log_text import exception_in_log
from rankcall.diagnose.readers import stack_files
from rankcall.diagnose.readers.dumps import pool
from rankcall.diagnose.readers.dumps.files import looks_like_dump
from rankcall.diagnose.readers.dumps.reduce import Tables
from rankcall.diagnose.readers.dumps.shared import Shared
from rankcall.diagnose.readers.dumps.worker import HEADER, read
from rankcall.diagnose.readers.faulthandler_text import (
    fatal_stack,
    samples_from_faulthandler,
    threads_from_faulthandler,
)
from rankcall.diagnose.readers.flight_recorder import dump_from_json, pending_by_group
from rankcall.diagnose.readers.gdb_text import samples_from_gdb
from rankcall.diagnose.readers.log_tail import log_tail
from rankcall.diagnose.readers.py_spy import samples_from_py_spy_json, samples_from_py_spy_text, threads_from_py_spy
from rankcall.diagnose.readers.pystack_text import samples_from_pystack
from rankcall.diagnose.readers.records import Record, process_from_record
from rankcall.diagnose.readers.stack_sample import MOST_FRAMES, MOST_THREADS, StackSample
from rankcall.diagnose.readers.torch_trace_text import samples_from_torch_trace
from rankcall.errors import RankcallError
from rankcall.findings import report_from_json
from rankcall.render.output import Target as Output
from rankcall.render.plain import paragraph
from rankcall.render.terminal import render_report
from rankcall.snapshot import Snapshot, snapshot_from_json, snapshot_to_json
from rankcall.why import Format, Wanted, answer

MIB = 1 << 20


class Refused(Exception):
    """The reader refused the input, in one sentence."""


@dataclass(frozen=True)
class Reader:
    """`run` gets an input and an empty folder; it raises Refused, or AssertionError for an answer that is none.

    `memory`: address space in MiB beyond what the process has at the beginning. `seconds` of CPU for one input.
    `stops`: being ended by these limits is how the reader protects itself, and no fault. `share`: makes only one input
    of so many that are asked for.
    """

    name: str
    make: Callable[[random.Random], bytes]
    run: Callable[[bytes, Path], None]
    memory: int = 1_024
    seconds: int = 20
    stops: bool = False
    share: int = 1


# --- dumps ---------------------------------------------------------------------------------------------------------


class _ThreadAsWorker:
    """What `pool` takes for a process: a thread that answers the same requests, a thousand times cheaper to start."""

    def __init__(self, *_: object, **__: object) -> None:
        requests, asked = os.pipe()
        answered, answers = os.pipe()
        self.stdin = os.fdopen(asked, "wb")
        self.stdout = os.fdopen(answered, "rb", buffering=0)
        self.returncode: int | None = None
        self.pid = os.getpid()
        self._thread = threading.Thread(
            target=_serve, args=(os.fdopen(requests, "rb"), os.fdopen(answers, "wb")), daemon=True
        )
        self._thread.start()

    def kill(self) -> None:
        """A thread ends when nobody asks any more."""

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join()
        self.returncode = 0
        return 0


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    tables = Tables()
    with requests, answers:
        for request in requests:
            header, columns = read(json.loads(request)[0], tables)
            encoded = json.dumps(header).encode()
            try:
                answers.write(HEADER.pack(len(encoded), len(columns)) + encoded + columns)
                answers.flush()
            except BrokenPipeError:
                return


def _one_dump(data: bytes, folder: Path) -> None:
    path = folder / "nccl_trace_rank_0"
    path.write_bytes(data)
    looks_like_dump(path)
    header, columns = read(str(path), Tables())
    encoded = json.dumps(header)
    if "error" in header:
        assert len(encoded) < 10_000, "a long refusal"
        _refuse(header["error"])
    assert sum(_WIDTHS[code] * count for _, code, count in header["columns"]) == len(columns), (
        "columns of another length"
    )


_WIDTHS = {"B": 1, "I": 4, "q": 8}


def _through_pool(data: bytes, folder: Path) -> None:
    """A hundred files by real processes: each is answered once, and sound ones among them are all read."""
    rng = random.Random(data)
    sources = []
    sound = set()
    for number in range(100):
        path = folder / f"{number}"
        good = number % 10 == 0
        path.write_bytes(rng.choice(_sound()) if good else inputs.dump_file(rng))
        if good:
            sound.add(path)
        sources.append(pool.Source(path, path.stat().st_size, 1.0))
    answers = list(pool.read_all(sources, Shared(), workers=2))
    assert sorted(one.path for one in answers) == sorted(source.path for source in sources), "not one answer a file"
    for one in answers:
        if isinstance(one, pool.Unreadable):
            assert one.path not in sound, f"a sound file was not read: {one.reason}"
            assert one.reason and "\n" not in one.reason


def _sound() -> list[bytes]:
    return [data for data in samples.dump_files() if data[:1] in (b"\x80", b"{") and data[-1:] in (b".", b"}")]


def _seed(rng: random.Random) -> bytes:
    return rng.randbytes(8)


# --- everything, as the command does it ------------------------------------------------------------------------------


def _files(data: bytes, folder: Path) -> None:
    with mock.patch.object(subprocess, "Popen", _ThreadAsWorker):
        _why(_laid_out(data, folder), data, folder)


def _folder(data: bytes, folder: Path) -> None:
    _why(_laid_out(data, folder), data, folder)


def _laid_out(data: bytes, folder: Path) -> Path:
    job = folder / "job"
    job.mkdir()
    for name, (content, written) in inputs.unpacked(data).items():
        path = job / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            os.utime(path, (written, written))
        except (OSError, ValueError):  # a name that is a folder already, or too long
            continue
    return job


def _snapshot(data: bytes, folder: Path) -> None:
    path = folder / "snapshot.json"
    path.write_bytes(data)
    _why(path, data, folder)


def _report(data: bytes, folder: Path) -> None:
    path = folder / "report.json"
    path.write_bytes(data)
    _why(path, data, folder)


_FORMATS: tuple[Format, ...] = ("terminal", "terminal", "terminal", "json", "json", "svg", "perfetto")


def _why(path: Path, data: bytes, folder: Path) -> None:
    """`rankcall why PATH --output FILE`, in one of its formats; what it writes must be well-formed and harmless."""
    choose = random.Random(data)
    format = choose.choice(_FORMATS)
    out, saved = folder / "out", folder / "saved"
    wanted = Wanted(
        format, choose.choice(("en", "en", "zh")), choose.choice(("normal", "normal", "verbose", "quiet")),
        choose.choice((None, None, None, 1, 8)), saved if choose.random() < 0.1 else None,
    )  # fmt: skip
    try:
        answer([path], wanted, Output(out, color=False))
    except RankcallError as error:
        _refuse(str(error))
    written = out.read_bytes()
    _CHECKS[format](written)
    if saved.exists():
        snapshot_from_json(saved.read_bytes())


def _refuse(sentence: str) -> None:
    assert sentence.strip(), "an empty refusal"
    assert "Traceback" not in sentence
    raise Refused(paragraph(sentence))  # as the command prints it


def _check_terminal(written: bytes) -> None:
    text = written.decode()
    bad = {sign for sign in set(text) if sign != "\n" and unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert not bad, f"the screen would obey {bad!r}"


def _check_json(written: bytes) -> None:
    report_from_json(written)
    assert not any(0x7F <= ord(sign) < 0xA0 or sign in "\u202e\u2066" for sign in written.decode()), "control codes"


def _check_svg(written: bytes) -> None:
    ElementTree.fromstring(written.decode())


def _check_perfetto(written: bytes) -> None:
    msgspec.json.decode(written)


_CHECKS: dict[str, Callable[[bytes], None]] = {
    "terminal": _check_terminal, "json": _check_json, "svg": _check_svg, "perfetto": _check_perfetto,
}  # fmt: skip


# --- records ---------------------------------------------------------------------------------------------------------


def _record(data: bytes, folder: Path) -> None:
    path = folder / "node-1-2.rec"
    path.write_bytes(data)
    try:
        record = Record(path)
    except ValueError as error:
        _refuse(str(error))
        return
    try:
        process = process_from_record(record)
    except ValueError as error:  # as everybody who reads records takes it
        _refuse(str(error))
        return
    finally:
        record.close()
    snapshot = Snapshot(taken_at=1_000_200.0, stalled=True, processes=(process,))
    assert snapshot_from_json(snapshot_to_json(snapshot)).processes[0].pid == process.pid
    _check_terminal(render_report(diagnose(snapshot)).encode("utf-8", "backslashreplace"))


# --- stacks ----------------------------------------------------------------------------------------------------------


def _faulthandler(data: bytes, folder: Path) -> None:
    text = data.decode("utf-8", "replace")
    fatal_stack(text)
    threads_from_faulthandler(text)
    _check_samples(samples_from_faulthandler(text.split("\n")))


def _py_spy_json(data: bytes, folder: Path) -> None:
    for _, _, frames in threads_from_py_spy(data):
        assert len(frames) <= MOST_FRAMES
    _check_samples(samples_from_py_spy_json(data.decode("utf-8", "replace")))


def _lines_reader(reader: Callable[[Iterable[str]], list[StackSample]]) -> Callable[[bytes, Path], None]:
    def run(data: bytes, folder: Path) -> None:
        _check_samples(reader(data.decode("utf-8", "replace").split("\n")))

    return run


def _stack_file(data: bytes, folder: Path) -> None:
    for name, (content, _) in inputs.unpacked(data).items():
        found = stack_files.stacks_from_text(content, name)
        _check_samples(found)
        stack_files.one_per_process(found)


def _check_samples(found: list[StackSample]) -> None:
    if not found:
        raise Refused("no stack")
    for sample in found:
        assert len(sample.threads) <= MOST_THREADS and len(sample.command) <= 2_000
        assert sum(thread.main for thread in sample.threads) <= 1
        for thread in sample.threads:
            assert len(thread.frames) <= MOST_FRAMES and len(thread.name) <= 500
            for frame in thread.frames:
                assert len(frame.file) <= 600 and len(frame.function) <= 600, "a long name"
                assert 0 <= frame.line < 1 << 63
    msgspec.json.encode([sample.threads for sample in found])


def _log(data: bytes, folder: Path) -> None:
    path = folder / "rank0.stderr"
    path.write_bytes(data)
    lines = log_tail([path])
    assert len(lines) <= 40 and all(len(line) <= 500 for line in lines)
    if exception_in_log(lines) is None:
        raise Refused("no exception")


def _flight_recorder(data: bytes, folder: Path) -> None:
    try:
        dump = dump_from_json(data)
    except msgspec.DecodeError as error:
        _refuse(str(error)[:200])
        return
    for pending in pending_by_group(dump):
        if pending.oldest is not None:
            assert pending.oldest.numel >= 0 and isinstance(pending.oldest.op + pending.oldest.backend, str)
    msgspec.json.encode(pending_by_group(dump))


def _text(sample: str) -> Callable[[random.Random], bytes]:
    return lambda rng: inputs.stack_text(rng, sample)


READERS = (
    Reader("dumps", inputs.dump_file, _one_dump, memory=256, seconds=4, stops=True),
    Reader("dumps-pool", _seed, _through_pool, memory=1_024, seconds=60, share=200),
    Reader("fleet", inputs.fleet, _files),
    Reader("snapshot", inputs.snapshot_file, _snapshot),
    Reader("report", inputs.report_file, _report),
    Reader("run-folder", inputs.run_folder, _folder),
    Reader("records", inputs.record, _record),
    Reader("salvage", inputs.salvage_folder, _folder),
    Reader("faulthandler", _text(samples.FAULTHANDLER), _faulthandler),
    Reader("py-spy-json", inputs.py_spy_json, _py_spy_json),
    Reader("py-spy-text", _text(samples.PY_SPY_TEXT), _lines_reader(samples_from_py_spy_text)),
    Reader("gdb", _text(samples.GDB), _lines_reader(samples_from_gdb)),
    Reader("pystack", _text(samples.PYSTACK), _lines_reader(samples_from_pystack)),
    Reader("torch-trace", _text(samples.WATCHDOG), _lines_reader(samples_from_torch_trace)),
    Reader("stack-files", inputs.stack_file, _stack_file),
    Reader("stack-folder", inputs.stack_folder, _files),
    Reader("log-tail", inputs.log_file, _log),
    Reader("flight-recorder", inputs.recorder_json, _flight_recorder),
)


def emptied(folder: Path) -> Path:
    """The folder, with nothing in it."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)
    return folder
