"""Dumps come from anywhere: nothing in a file, its name or its neighbours runs code, takes the machine's memory or
time, blocks, or costs the other files. Real worker processes."""

from __future__ import annotations

import contextlib
import copyreg
import ctypes
import io
import json
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from rankcall.diagnose.readers.dumps import pool, reduce, worker
from rankcall.diagnose.readers.dumps.files import named
from rankcall.diagnose.readers.dumps.read import read_dumps
from rankcall.diagnose.readers.dumps.reduce import NotADump, Tables
from rankcall.findings import Report, report_from_json
from rankcall.why import explain_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and process states are Linux's")

MIB = 1 << 20
BEGIN_NS = 1_790_000_000 * 10**9
_FRAMES = [{"name": "main", "filename": "/home/me/train.py", "line": 57}]
_GROUP = ("0", "default_pg")
_SHAPES, _TYPES = [[4]], ["Float"]


# --- files -----------------------------------------------------------------------------------------------------------


def entry(number: int, **more: Any) -> dict[str, Any]:
    """One entry as torch writes it. What is equal in all entries is one object, so that a pickle holds it once."""
    return {
        "frames": _FRAMES, "record_id": number, "pg_id": 0, "process_group": _GROUP, "collective_seq_id": number + 1,
        "op_id": number + 1, "profiling_name": "nccl:all_reduce", "time_created_ns": BEGIN_NS + number * 10**7,
        "input_sizes": _SHAPES, "input_dtypes": _TYPES, "output_sizes": _SHAPES, "output_dtypes": _TYPES,
        "state": "completed", "retired": True, "timeout_ms": 600_000, "is_p2p": False,
    } | more  # fmt: skip


def dump(world: int = 4, entries: Iterable[dict[str, Any]] = (), **more: Any) -> dict[str, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
    return {"version": "2.10", "pg_config": config, "entries": list(entries)} | more


def sound(world: int = 4, count: int = 3) -> bytes:
    return pickle.dumps(dump(world, map(entry, range(count))), 2)


def put(folder: Path, rank: int | str, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(data)
    return path


def put_sound(folder: Path, ranks: Iterable[int], world: int = 4) -> None:
    for rank in ranks:
        put(folder, rank, sound(world))


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a command ended; `peak` is the most memory in bytes that it or one of its workers had."""

    code: int
    out: str
    err: str
    peak: int = 0


# A process counts the memory of the one it was forked from as its own peak: of a test runner that has loaded torch,
# most of a gigabyte. So a small one stands between, and tells what its child had.
BETWEEN = """
import os, resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def why(*arguments: str | Path, before: Callable[[], None] | None = None, seconds: float = 45.0) -> Ended:
    """`rankcall why` in a process of its own, which is killed where it hangs."""
    descriptor, measured = tempfile.mkstemp()
    os.close(descriptor)
    os.chmod(measured, 0o666)
    command = [sys.executable, "-m", "rankcall", "why", *map(os.fspath, arguments)]
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", BETWEEN, measured, *command],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=before,
        start_new_session=True,
    )  # fmt: skip
    late = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
    late.start()
    try:
        assert process.stdout is not None and process.stderr is not None
        with process.stdout, process.stderr:
            errors: list[bytes] = []
            reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))  # type: ignore[union-attr]
            reader.start()
            out = process.stdout.read()
            reader.join()
        process.wait()
        peak = Path(measured).read_text()
    finally:
        late.cancel()
        os.unlink(measured)
    return Ended(process.returncode, out.decode(), errors[0].decode(), int(peak or 0) * 1024)


def report_of(ended: Ended) -> Report:
    assert ended.code in (0, 1), ended
    return report_from_json(ended.out.encode())


def read(report: Report) -> set[int]:
    """The ranks whose dumps were read: those whose line is known."""
    return {row.rank for row in report.ranks if row.rank is not None and row.where is not None}


def unreadable(report: Report) -> dict[str, str]:
    """File name to the reason why nothing was read of it."""
    found = report.data.get("unreadable", [])
    assert isinstance(found, list)
    return {os.path.basename(one["file"]): one["reason"] for one in found}


def workers_of(pid: int) -> list[psutil.Process]:
    try:
        children = psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []
    return [child for child in children if _is_worker(child)]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any(part.endswith("worker.py") for part in process.cmdline())
    except psutil.Error:
        return False


def gone(processes: Iterable[psutil.Process], seconds: float = 15.0) -> bool:
    """Whether all of them end in time; what is left is ended."""
    _, left = psutil.wait_procs(list(processes), timeout=seconds)
    for process in left:
        process.kill()
    return not left


@pytest.fixture(autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    yield
    left = workers_of(os.getpid())
    assert gone(left, 0.0), "workers outlive the reading"


def without_rights(*capabilities: int) -> Callable[[], None]:
    """For a test that runs as root: give up rights that root has and users do not. 1 and 2: read any file, 24: raise
    limits."""

    def give_up() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in capabilities:
            libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: root's new program does not have it

    return give_up


# --- code ------------------------------------------------------------------------------------------------------------


def _armed(marker: Path) -> dict[str, bytes]:
    """Pickles that make a file when an ordinary unpickler reads them."""
    command = f"touch {marker}".encode()
    text = b"X" + struct.pack("<I", len(command)) + command
    call = b"cos\nsystem\n" + text
    return {
        "reduce": b"\x80\x02" + call + b"\x85R.",
        "obj": b"\x80\x02(" + call + b"o.",
        "inst": b"\x80\x02(" + text + b"ios\nsystem\n.",
        "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93" + text + b"\x85R.",
        "newobj": b"\x80\x02cbuiltins\nmap\n(cos\nsystem\n" + text + b"\x85t\x810cbuiltins\nlist\ncbuiltins\nmap\n"
                  b"(cos\nsystem\n" + text + b"\x85t\x81\x85R.",
        "build": b"\x80\x02ccollections\nOrderedDict\n)R}X\x01\x00\x00\x00a" + call + b"\x85Rsb.",
        "eval": b"\x80\x02cbuiltins\neval\nX" + struct.pack("<I", len(command) + 35)
                + b"__import__('os').system('" + command + b"')" + b" or 1234" + b"\x85R.",
        "inside a sound dump": b"\x80\x02}(X\x07\x00\x00\x00version" + call + b"\x85RX\x07\x00\x00\x00entries]u.",
    }  # fmt: skip


@pytest.mark.parametrize("name", _armed(Path("/")))
def test_the_armed_pickles_are_armed(tmp_path: Path, name: str) -> None:
    with contextlib.suppress(Exception):
        pickle.loads(_armed(tmp_path / "ran")[name])
    assert (tmp_path / "ran").exists()


def test_code_in_a_pickle_never_runs_and_sound_files_beside_it_are_read(tmp_path: Path) -> None:
    folder, marker = tmp_path / "dumps", tmp_path / "ran"
    put_sound(folder, range(2), world=40)
    unarmed = {
        "extension 1": b"\x80\x02\x82\x7f.", "extension 2": b"\x80\x02\x83\x7f\x00.",
        "extension 4": b"\x80\x02\x84\x7f\x00\x00\x00.", "persistent": b"\x80\x02Pos.system\n.",
        "persistent object": b"\x80\x02X\x01\x00\x00\x00xQ.", "out of band": b"\x80\x05\x97.",
        "reduce of data": b"\x80\x02](]R.", "build of a list": b"\x80\x02]}X\x01\x00\x00\x00a]sb.",
    }  # fmt: skip
    files = {**_armed(marker), **unarmed}
    for rank, data in enumerate(files.values(), 2):
        put(folder, rank, data)
    report = explain_files([folder])
    assert not marker.exists()
    assert read(report) == {0, 1}
    said = unreadable(report)
    assert len(said) == len(files)
    assert said["nccl_trace_rank_2"] == "it asks for os.system: a dump of torch needs no code"


def test_registered_extensions_do_not_help(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    data = b"\x80\x02\x82\x7fX" + struct.pack("<I", len(str(marker))) + str(marker).encode() + b"\x85R."
    copyreg.add_extension("os", "mkdir", 0x7F)
    try:
        with pytest.raises(NotADump, match=r"it asks for os\.mkdir"):
            worker.load(io.BytesIO(data))
        assert not marker.exists()
        pickle.loads(data)
        assert marker.exists(), "the pickle is armed"
    finally:
        copyreg.remove_extension("os", "mkdir", 0x7F)
        copyreg.clear_extension_cache()


# --- memory ----------------------------------------------------------------------------------------------------------


def _unfolding(depth: int) -> list[Any]:
    value: list[Any] = [7]
    for _ in range(depth):
        value = [value, value]
    return value


def _memory_bombs() -> dict[str, bytes]:
    bomb = _unfolding(30)
    shared = [0] * 1_000
    places = {
        "entries": dump(entries=bomb), "version": dump(version=bomb), "config": dump(pg_config={"0": bomb}),
        "members": dump(pg_config={"0": {"ranks": bomb}}), "status": dump(pg_status={"0": bomb}),
        "frames": dump(entries=[entry(0, frames=bomb)]), "group": dump(entries=[entry(0, process_group=bomb)]),
        "sizes": dump(entries=[entry(0, input_sizes=bomb)]), "types": dump(entries=[entry(0, input_dtypes=bomb)]),
        "ten million numbers": dump(entries=[entry(n, input_sizes=[shared] * 10_000) for n in range(100)]),
    }  # fmt: skip
    return {
        "memo of 16 GiB": b"\x80\x02]r\xff\xff\xff\x7f.",
        "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b".",
        "text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b".",
        "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 36) + b".",
        "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b".",
        "number": b"\x80\x02\x8b" + struct.pack("<i", (1 << 31) - 1) + b".",
        "depth": b'{"entries":' + b"[" * 1_000_000,
        "depth of a pickle": b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
        **{f"unfolds in {name}": pickle.dumps(document, 2) for name, document in places.items()},
    }


def test_memory_bombs_cost_their_own_file_only(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    bombs = _memory_bombs()
    assert len(bombs["memo of 16 GiB"]) == 9
    put_sound(folder, range(2), world=40)
    for rank, data in enumerate(bombs.values(), 2):
        put(folder, rank, data)
    put_sound(folder, range(30, 34), world=40)
    ended = why(folder, "--format", "json")
    report = report_of(ended)
    assert ended.peak < 512 * MIB
    assert read(report) >= {0, 1, 30, 31, 32, 33}
    said = unreadable(report)
    assert said["nccl_trace_rank_2"] == "it asks for more memory than a dump of its size may"
    assert said["nccl_trace_rank_8"] == "it is nested deeper than any dump"
    assert not {f"nccl_trace_rank_{rank}" for rank in (0, 1, 30, 31, 32, 33)} & set(said)


def test_what_a_file_sends_to_the_parent_is_bounded_by_its_size(tmp_path: Path) -> None:
    """One object in a thousand places of a pickle is a thousand objects in the answer, if nobody counts."""
    inputs = [[2**40 + number] for number in range(64)]
    types = [f"T{number}" * 80 for number in range(8)]
    rows = [entry(n, input_sizes=inputs, input_dtypes=types, output_sizes=[[n]]) for n in range(2_000)]
    path = put(tmp_path, 0, pickle.dumps(dump(entries=rows), 2))
    header, columns = worker.read(str(path), Tables())
    assert len(json.dumps(header)) + len(columns) <= 8 * path.stat().st_size + 64 * 1024


def test_two_thousand_hostile_files_leave_the_parent_small(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    fat = [f"T{number}" * 60 for number in range(8)]
    kinds = [
        lambda n: pickle.dumps(dump(4_000, [entry(k, input_dtypes=fat, input_sizes=[[n, k]]) for k in range(6)]), 2),
        lambda n: pickle.dumps(dump(pg_config={str(n): {"ranks": str(list(range(n, n + 900, 2)))}}), 2),
        lambda n: pickle.dumps(dump(4_000, [entry(0, frames=[{"name": "f" * 390, "filename": str(n)}] * 60)]), 2),
        lambda n: b"\x80\x02]r\xff\xff\xff\x7f.",
        lambda n: b"\x80\x02" + b"]" * 5_000 + b"." + bytes(n),
        lambda n: pickle.dumps(dump(entries=_unfolding(100)), 2),
        lambda n: b'{"entries": [' + b"{}," * 1_000,
    ]
    for number in range(2_000):
        put(folder, number, kinds[number % len(kinds)](number))
    ended = why(folder, "--format", "json", "--output", tmp_path / "out", seconds=60)
    assert ended.code in (0, 1, 2), ended.err
    assert ended.peak < 512 * MIB


def test_absurd_ranks_are_not_counted_up_to(tmp_path: Path) -> None:
    """A rank of 2 ** 40 in a list of members, and one of ten million in a file's name."""
    far = dump(entries=map(entry, range(3)), pg_config={"x": {"name": "x", "desc": "y", "ranks": "[0, 1099511627775]"}})
    put(tmp_path, 0, pickle.dumps(far, 2))
    put(tmp_path, 9_999_999, pickle.dumps(dump(entries=map(entry, range(3)), pg_config={}), 2))
    ended = why(tmp_path, before=lambda: resource.setrlimit(resource.RLIMIT_AS, (2_048 * MIB, resource.RLIM_INFINITY)))
    assert ended.code in (0, 1, 2), ended.err
    assert ended.peak < 512 * MIB


# --- time ------------------------------------------------------------------------------------------------------------


def test_time_bombs_are_ended_and_the_rest_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing a tuple of tuples takes 2 ** 40 steps, all of them in C."""
    monkeypatch.setattr(pool, "_CPU_SECONDS", 0)
    put_sound(tmp_path, range(8), world=9)
    put(tmp_path, 8, b"\x80\x02}" + b")2\x86" + b"2\x86" * 40 + b"K\x01s.")
    report = explain_files([tmp_path])
    assert read(report) == set(range(8))
    assert list(unreadable(report)) == ["nccl_trace_rank_8"]
    assert "more memory or time" in unreadable(report)["nccl_trace_rank_8"]


def test_tuples_that_unfold_are_not_walked(tmp_path: Path) -> None:
    """Where a dump is only looked at, such a tuple costs nothing."""
    folded: tuple[Any, ...] = ()
    for _ in range(60):
        folded = (folded, folded)
    for rank, field in enumerate(("process_group", "profiling_name", "state", "retired", "pg_id", "frames")):
        put(tmp_path, rank, pickle.dumps(dump(9, [entry(0), entry(1, **{field: folded}), entry(2)]), 2))
    report = explain_files([tmp_path])
    assert unreadable(report) == {}
    assert read(report) == set(range(6))


# --- what else lies in the folder ------------------------------------------------------------------------------------


def test_links_pipes_sockets_and_devices_are_no_dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "dumps"
    put_sound(folder, range(2))
    (folder / "rank_7").symlink_to("rank_7")
    (folder / "up").symlink_to(folder, target_is_directory=True)
    (folder / "rank_8").symlink_to("/dev/zero")
    (folder / "rank_9").symlink_to("/nowhere")
    os.mkfifo(folder / "nccl_trace_rank_2")
    (folder / "nccl_trace_rank_3").symlink_to("nccl_trace_rank_2")
    (folder / "nccl_trace_rank_4").mkdir()
    monkeypatch.chdir(folder)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("nccl_trace_rank_5")
        report = report_of(why(folder, "--format", "json"))
    assert read(report) == {0, 1}
    assert unreadable(report) == {}


@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="needs a regular file whose reading blocks")
def test_a_link_to_a_kernel_file_that_blocks(tmp_path: Path) -> None:
    put_sound(tmp_path, range(2))
    (tmp_path / "nccl_trace_rank_2").symlink_to("/proc/kmsg")
    assert read(report_of(why(tmp_path, "--format", "json"))) == {0, 1}


@pytest.mark.parametrize("kind", ["pipe", "device", "loop"])
def test_a_path_that_is_no_file_is_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    ended = why(path)
    assert (ended.code, ended.out) == (2, "")
    assert "Traceback" not in ended.err and ended.err.strip()


def test_files_that_change_or_vanish_while_they_are_read(tmp_path: Path) -> None:
    paths = [put(tmp_path, rank, sound(60, 200)) for rank in range(60)]

    def meddle(done: int, every: int) -> None:
        if done != 1:
            return
        for number, path in enumerate(paths[20:]):
            if number % 4 == 0:
                path.unlink()
            elif number % 4 == 1:
                path.write_bytes(path.read_bytes()[:500])
            elif number % 4 == 2:
                path.unlink()
                path.mkdir()
            else:
                path.unlink()
                os.mkfifo(path)

    report = _in_time(lambda: explain_files([tmp_path], progress=meddle))
    said = unreadable(report)
    assert read(report) >= set(range(20))
    assert read(report) | {int(name.rpartition("_")[2]) for name in said} == set(range(60))
    assert "No such file or directory" in said.values()


def _in_time(action: Callable[[], Report], seconds: float = 20.0) -> Report:
    """Its answer; an action that blocks on the disk is woken by ending its workers, and fails."""
    done = threading.Event()
    ended: list[int] = []

    def wake() -> None:
        if done.wait(seconds):
            return
        while not done.wait(0.05):
            for child in workers_of(os.getpid()):
                ended.append(child.pid)
                child.kill()

    waker = threading.Thread(target=wake)
    waker.start()
    try:
        report = action()
    finally:
        done.set()
        waker.join()
    assert not ended, "a worker was blocked by what lay in a file's place"
    return report


def test_a_file_that_may_not_be_read_costs_itself_only(tmp_path: Path) -> None:
    put_sound(tmp_path, range(3))
    put(tmp_path, 3, sound()).chmod(0)
    report = report_of(why(tmp_path, "--format", "json", before=without_rights(1, 2)))
    assert read(report) == {0, 1, 2}
    assert unreadable(report) == {"nccl_trace_rank_3": "Permission denied"}


def test_a_private_folder_below_costs_itself_only(tmp_path: Path) -> None:
    """`lost+found`, say, where dumps are written to a disk of their own."""
    put_sound(tmp_path, range(2))
    private = tmp_path / "lost+found"
    private.mkdir()
    private.chmod(0)
    try:
        assert read(report_of(why(tmp_path, "--format", "json", before=without_rights(1, 2)))) == {0, 1}
    finally:
        private.chmod(0o700)


def test_paths_that_cannot_be_looked_at_are_said(tmp_path: Path) -> None:
    one, private = put(tmp_path, 0, sound()), tmp_path / "private"
    put_sound(private, range(1))
    private.chmod(0)
    try:
        for other in (private / "nccl_trace_rank_0", Path("x" * 5_000)):
            ended = why(one, other, before=without_rights(1, 2))
            assert (ended.code, ended.out) == (2, ""), ended.err
            assert "an error of rankcall itself" not in ended.err
    finally:
        private.chmod(0o700)


def test_an_empty_dump_among_the_files_named_is_not_taken_for_a_run(tmp_path: Path) -> None:
    put_sound(tmp_path, range(2))
    put(tmp_path, 2, b"")
    report = report_of(why(*sorted(tmp_path.iterdir()), "--format", "json"))
    assert read(report) == {0, 1}
    assert unreadable(report) == {"nccl_trace_rank_2": "it is empty"}


def test_twenty_thousand_tiny_files(tmp_path: Path) -> None:
    put_sound(tmp_path, range(4))
    for number in range(20_000):
        (tmp_path / f"note{number}.log").write_bytes(b"\x80" if number % 100 == 0 else b"x")
    report = explain_files([tmp_path])
    assert read(report) >= {0, 1, 2, 3}
    assert set(unreadable(report)) == {f"note{number}.log" for number in range(0, 20_000, 100)}


_NAMES = (b"a\nb\r_rank_0", b"\x1b[2J\x1b]0;title\x07_rank_1", "\u202erank_2\u2066".encode(), b"\xff\xfe_rank_3",
          b"x" * 240 + b"_rank_4", b" _rank_5 ", b"-rank_6", b"'\"$(touch ran)_rank_7")  # fmt: skip


@pytest.mark.parametrize("format", ["terminal", "json", "svg", "perfetto"])
def test_names_of_files_are_text_and_nothing_else(tmp_path: Path, format: str) -> None:
    folder = os.fsencode(tmp_path / "dumps")
    os.mkdir(folder)
    for number, name in enumerate(_NAMES):
        # Every second one cannot be read, so that its name is said.
        Path(os.fsdecode(folder + b"/" + name)).write_bytes(sound(20) if number % 2 else b"\x80\x02damaged")
    for arguments in (("--format", format), ("--format", format, "-v", "--save-snapshot", str(tmp_path / "saved"))):
        ended = why(tmp_path / "dumps", *arguments)
        assert ended.code in (0, 1), ended.err
        assert not set(ended.out) & {"\x1b", "\x07", "\r", "\u202e", "\u2066"}
    assert not list(tmp_path.rglob("ran")) and not Path("ran").exists()


@pytest.mark.parametrize("format", ["terminal", "json", "svg", "perfetto"])
def test_texts_in_a_dump_are_text_and_nothing_else(tmp_path: Path, format: str) -> None:
    hostile = "\ud800\x1b[2J\u202e\0</svg>\n"
    frames = [{"name": hostile, "filename": f"/home/{hostile}.py", "line": 3}]
    more = {"profiling_name": f"nccl:{hostile}", "frames": frames, "process_group": (hostile, hostile)}
    for rank in range(3):
        rows = [entry(0, **more), entry(1, state="scheduled", retired=False, **more)][: 1 if rank == 2 else 2]
        config = {hostile: {"name": hostile, "desc": hostile, "ranks": "[0, 1, 2]"}}
        put(tmp_path / "dumps", rank, pickle.dumps(dump(entries=rows, pg_config=config, version=hostile), 2))
    ended = why(tmp_path / "dumps", "--format", format, "-v", "--save-snapshot", tmp_path / "saved")
    assert ended.code == 1, ended.err
    assert not set(ended.out) & {"\x1b", "\0", "\u202e"}


# --- workers ---------------------------------------------------------------------------------------------------------


def test_paths_longer_than_a_pipe_holds_do_not_lock_parent_and_worker(tmp_path: Path) -> None:
    """Control codes in a path take six characters in a request; eight requests lie ahead of a worker."""
    folder = tmp_path.joinpath(*["\x01" * 250] * 7)
    data = sound(12, 3_000)
    for rank in range(12):
        put(folder, rank, data)
    assert read(report_of(why(tmp_path, "--format", "json"))) == set(range(12))


def test_limits_of_the_shell_do_not_keep_workers_from_reading(tmp_path: Path) -> None:
    """`ulimit -v` and `ulimit -t`, as login nodes have them: what is above them cannot be asked for."""
    put_sound(tmp_path, range(3))

    def limited() -> None:
        without_rights(24)()
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (600, 600))

    assert read(report_of(why(tmp_path, "--format", "json", before=limited))) == {0, 1, 2}


def test_a_file_that_fails_halfway_does_not_mix_up_the_next_ones(tmp_path: Path) -> None:
    """Workers and parent number what they have told each other. A file that fails while its calls are told, for a size
    of five thousand digits or for want of memory, must leave both with the same numbers."""
    for rank in range(12):
        size = -(10**5_000) if rank == 0 else 4
        rows = [entry(n, profiling_name=f"nccl:op{rank}_{n}", input_sizes=[[size]]) for n in range(3)]
        put(tmp_path, rank, pickle.dumps(dump(12, rows), 2))
    files = [named(path, path.stat()) for path in sorted(tmp_path.iterdir())]
    snapshot = read_dumps(files).snapshot
    assert snapshot is not None
    told = {process.rank: [event.op for event in process.ring] for process in snapshot.processes}
    assert told == told | {rank: [f"op{rank}_{n}" for n in range(3)] for rank in range(1, 12)}


def test_memory_that_ends_halfway_leaves_the_numbers_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reduce._call
    calls = iter(range(100))

    def fails_once(*parts: Any) -> list[Any]:
        if next(calls) == 5:
            raise MemoryError
        return made(*parts)

    monkeypatch.setattr(reduce, "_call", fails_once)
    tables = Tables()
    told = 0
    for rank in range(2):
        rows = [entry(n, profiling_name=f"nccl:{rank}_{n}") for n in range(10)]
        header, _ = worker.read(str(put(tmp_path, rank, pickle.dumps(dump(entries=rows), 2))), tables)
        told += len(header["tables"]["calls"])
        assert ("error" in header) == (rank == 0)
    assert sorted(tables.calls.values()) == list(range(told))


def test_a_worker_that_is_killed_costs_the_file_in_its_hand(tmp_path: Path) -> None:
    put_sound(tmp_path, range(120), world=120)
    killed: list[int] = []

    def kill(done: int, every: int) -> None:
        if done in (5, 40):
            victims = workers_of(os.getpid())[:1]
            for victim in victims:
                victim.kill()
            killed.extend(victim.pid for victim in victims)

    report = explain_files([tmp_path], progress=kill)
    said = unreadable(report)
    assert killed
    assert len(said) <= len(killed)
    assert len(read(report)) + len(said) == 120


def test_a_worker_that_stands_still_is_waited_for(tmp_path: Path) -> None:
    """As on a disk that answers late: the others read on, and nothing is lost."""
    put_sound(tmp_path, range(120), world=120)
    timers: list[threading.Timer] = []
    reached: list[int] = []

    def stop(done: int, every: int) -> None:
        reached.append(done)
        if done == 3:
            for victim in workers_of(os.getpid())[:1]:
                victim.suspend()
                timers.append(threading.Timer(1.0, victim.resume))
                timers[-1].start()

    report = explain_files([tmp_path], progress=stop)
    for timer in timers:
        timer.join()
    assert timers
    assert reached == list(range(1, 121))
    assert read(report) == set(range(120)) and unreadable(report) == {}


@contextlib.contextmanager
def busy_why(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """`rankcall why` in the middle of reading, its workers stopped so that it stays there."""
    folder.mkdir()
    first = put(folder, 0, sound(40, 30_000))
    for rank in range(1, 40):
        os.link(first, first.with_name(f"nccl_trace_rank_{rank}"))
    process = subprocess.Popen(
        [sys.executable, "-m", "rankcall", "why", str(folder)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    workers: list[psutil.Process] = []
    try:
        while not workers and process.poll() is None:
            workers = workers_of(process.pid)
        time.sleep(0.1)  # all of them have started, and read
        workers = workers_of(process.pid)
        for one in workers:
            one.suspend()
        assert workers and process.poll() is None
        yield process, workers
    finally:
        for one in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.kill()
        process.communicate()


@pytest.mark.parametrize("whole_group", [False, True], ids=["the command alone", "all processes of the terminal"])
def test_ctrl_c_ends_the_command_and_its_workers(tmp_path: Path, whole_group: bool) -> None:
    with busy_why(tmp_path / "dumps") as (process, workers):
        if whole_group:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=15)
        assert process.returncode == 130
        assert "Traceback" not in err and out == ""
        assert gone(workers)


def test_workers_end_when_the_command_is_killed(tmp_path: Path) -> None:
    with busy_why(tmp_path / "dumps") as (process, workers):
        process.kill()
        process.wait()
        for one in workers:
            one.resume()
        assert gone(workers)


def test_two_commands_on_one_folder_answer_alike_and_leave_it_as_it_is(tmp_path: Path) -> None:
    put_sound(tmp_path, range(20), world=21)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    ended: list[Ended] = []
    threads = [threading.Thread(target=lambda: ended.append(why(tmp_path, "--format", "json"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one, other = map(report_of, ended)
    assert read(one) == read(other) == set(range(20))
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
