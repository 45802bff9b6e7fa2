"""Valid inputs of every reader, small ones: what a fuzzer damages.

The dumps come from the simulator in tests/dumps, the snapshots and reports from the small languages in tests/diagnose
and tests/render.
"""

from __future__ import annotations

import functools
import json
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnose.hand_made import Job
from dumps.plant import plant
from dumps.write import dump, to_bytes
from rankcall.findings import report_to_json
from rankcall.record import layout
from rankcall.record.recorder import Recorder
from rankcall.record.writer import Writer
from rankcall.snapshot import ExceptionNote, snapshot_to_json
from render.render_reports import completed, crashed, skipped_batch, withdrawn

_RING = 14  # entries of each rank's dump
_MOST_RANKS = 5
# Seeds that give a small job quickly. One that no longer does is left out.
_SMALL = {
    "missing": (12, 15), "missing-no-dump": (0, 1), "two-roots": (1, 3), "cycle": (12, 13), "shape-mismatch": (3, 4),
    "swapped": (3, 14), "skipped": (0, 1), "skipped-before-ring": (0, 3), "unpaired-p2p": (3, 15),
    "missing-some-dumps": (7, 8), "missing-stale-dump": (13,), "missing-unequal-rings": (7, 8),
    "dtype-mismatch": (1, 3), "other-kind": (0, 1), "healthy-moment": (7, 13), "healthy-end": (2, 3),
    "healthy-after-init": (4, 13), "healthy-empty-ring": (5, 9), "healthy-pipeline": (0, 2), "healthy-reinit": (2, 3),
    "healthy-slow-rank": (3, 9),
}  # fmt: skip
_TORCH = "/opt/venv/lib/python3.11/site-packages/torch"


# --- dumps ---------------------------------------------------------------------------------------------------------


@functools.cache
def fleets() -> tuple[dict[str, bytes], ...]:
    """File name to bytes, for the ranks of small jobs: every kind of fault, and healthy ones."""
    found = []
    for planted in (plant(kind, seed) for kind, seeds in _SMALL.items() for seed in seeds):
        if planted.world > _MOST_RANKS:
            continue
        files = {}
        for rank, moment in enumerate(planted.moments):
            if planted.lost.get(rank) == "absent":
                continue
            document = dump(planted.simulation, rank, replace(moment, ring=_RING), planted.form)
            files[planted.form.file_name(rank)] = to_bytes(document, planted.form)
        found.append(files)
    return tuple(found)


@functools.cache
def dump_files() -> tuple[bytes, ...]:
    return tuple(data for fleet in fleets() for data in fleet.values())


@functools.cache
def dump_documents() -> tuple[Any, ...]:
    """The same as objects."""
    return tuple(document_of(data) for data in dump_files())


def document_of(data: bytes) -> Any:
    """Our own samples only: nothing untrusted may come here."""
    return pickle.loads(data) if data[:1] == b"\x80" else json.loads(data)


# --- snapshots and reports -------------------------------------------------------------------------------------------

_SCRIPT = """import torch
def main():
    for batch in loader:  # <- batch
        loss = model(batch)  # <- forward
        if loss.isnan():
            continue  # <- skip
        loss.backward()  # <- backward
        optimizer.step()  # <- step
    if rank == 0:
        dist.barrier()  # <- barrier
    dist.all_reduce(x)  # <- reduce
    time.sleep(100)  # <- sleep
    raise ValueError("x")  # <- raise
    torch.save(model, path)  # <- save
"""


def _trained(world: int = 3, steps: int = 3) -> Job:
    job = Job(world, _SCRIPT)
    for rank in job.ranks:
        rank.train(steps, job.line("forward"), job.line("backward"), job.line("step"), job.line("batch"))
    return job


def _sleeping() -> Job:
    job = _trained()
    job[0].waits_in("all_reduce", job.line("reduce"))
    job[1].waits_in("all_reduce", job.line("reduce"))
    job[2].doing("idle", job.line("sleep"), blocked_in="sleeping")
    return job


def _skipped() -> Job:
    job = _trained(2)
    job[0].forward(job.line("forward")).backward(job.line("backward")).step(job.line("step"))
    job[1].forward(job.line("forward")).batch(job.line("batch"))
    for rank in job.ranks:
        rank.waits_in("barrier", job.line("barrier"))
    return job


def _mismatched() -> Job:
    job = _trained(4)
    for number, rank in enumerate(job.ranks):
        rank.waits_in("broadcast" if number == 2 else "all_reduce", job.line("reduce"), numel=4 + number, root=0)
    return job


def _crossed() -> Job:
    job = _trained(4)
    one, other = job.group(0, 1), job.group(1, 2, 3)
    job[0].waits_in("all_reduce", job.line("reduce"), one)
    job[1].waits_in("all_reduce", job.line("reduce"), other)
    job[2].waits_in("barrier", job.line("barrier"))
    job[3].backward(job.line("backward")).waits_in_cpp()
    return job


def _pairs() -> Job:
    job = _trained(3)
    job[0].send(1, job.line("reduce")).waits()
    job[1].send(0, job.line("reduce")).waits()
    job[2].recv(0, job.line("reduce"), tag=3).waits()
    return job


def _raised() -> Job:
    job = _trained().crashed()
    job[0].raises("ValueError", "x is bad", job.line("raise"), chain=("KeyError: 'a'",))
    job[1].collective("all_reduce", job.line("reduce")).echoes(job.line("reduce"))
    job[2].collective("all_reduce", job.line("reduce")).killed()
    return job


def _killed() -> Job:
    job = _trained().crashed()
    job[0].dies(9, oom_killed=True)
    job[1].collective("all_reduce", job.line("reduce")).aborts()
    job[2].exits(3, job.line("sleep"))
    return job


def _left() -> Job:
    job = _trained()
    job[0].finishes()
    job[1].waits_in("barrier", job.line("barrier"))
    job[2].doing("data", job.line("batch")).child("loader-worker", state="zombie")
    return job


def _logged() -> Job:
    job = _trained().crashed()
    text = ("Traceback (most recent call last):", '  File "/home/me/train.py", line 13, in main', "KeyError: 3")
    job[0].set(log_tail=text, state="gone").dies(1)
    job[1].set(initialized="no", claimed_rank=None, state="stopped")
    job[2].set(world_size=4, launcher_rank=0, initialized="entered", master="a:1", backend="nccl")
    job.listens(29500, None, "python")
    return job


def _starting() -> Job:
    job = Job(3, _SCRIPT).at_once()
    for rank in job.ranks:
        rank.set(initialized="entered" if rank.rank else "no").doing("init", job.line("sleep"), busy=0.9)
    return job


@functools.cache
def snapshots() -> tuple[bytes, ...]:
    makers: tuple[Callable[[], Job], ...] = (
        _sleeping, _skipped, _mismatched, _crossed, _pairs, _raised, _killed, _left, _logged, _starting,
    )  # fmt: skip
    found = [snapshot_to_json(make().snapshot()) for make in makers]
    failed = ExceptionNote("OSError", "address already in use", time=1_000_001.0)
    refused = _starting().snapshot(launcher_error=failed, notes=("a",), last_lines=("oom-kill: pid=1000",))
    found.append(snapshot_to_json(refused))
    found.append(snapshot_to_json(_trained().completed().snapshot()))
    return tuple(found)


@functools.cache
def reports() -> tuple[bytes, ...]:
    return tuple(report_to_json(make()) for make in (skipped_batch, crashed, completed, withdrawn))


RUN_FILE = json.dumps({
    "schema": "rankcall.run/1", "id": "20260101-000000-abc", "version": "0.1.0", "command": ["train.py", "--lr", "1"],
    "started_at": 1_000_000.0,
}).encode()  # fmt: skip


# --- records ---------------------------------------------------------------------------------------------------------


@functools.cache
def records() -> tuple[bytes, ...]:
    """A rank that waits, and one that left with an exception."""
    with tempfile.TemporaryDirectory(prefix="rankcall-fuzz-") as folder:
        return tuple(_record(Path(folder) / f"{rank}.rec", rank) for rank in (0, 1))


def _record(path: Path, rank: int) -> bytes:
    recorder = Recorder()
    writer = Writer(str(path), 4_000 + rank, 7)
    recorder.start(writer)
    recorder.identify(
        host="node", claimed_rank=rank, launcher_rank=rank, local_rank=rank, world_size=2, attempt=0,
        initialized="done", backend="gloo", master="127.0.0.1:29500", command=["train.py"], devices=["cpu"],
        versions={"torch": "2.13.0"}, faults=["a: b"],
    )  # fmt: skip
    for number, members in enumerate(([[0, 1]], [[0, 0]])):
        fact = {"number": number, "name": str(number), "description": "default_pg", "backend": "gloo",
                "members": members, "incarnation": 0}  # fmt: skip
        writer.intern(("group", number), json.dumps(fact), layout.TAG_GROUP)
        writer.set_group(number, 9)
    for step in range(30):
        site = recorder.site(1)
        recorder.set_loop_step(step)
        for kind in ("forward", "backward", "step"):
            recorder.event(layout.KIND[kind], site, compared=True)
        recorder.event(layout.KIND["collective"], site, compared=True, op=recorder.name("all_reduce"), group=0,
                       seq=step + 1, numel=4, dtype=recorder.name("float32"))  # fmt: skip
        recorder.count("backwards")
    recorder.change(layout.PHASE["collective"], recorder.site(1), layout.WAIT["collective"], 119)
    line = ["/home/me/train.py", 3, "main"]
    error = {"type": "ValueError", "message": "bad", "frames": [line], "chain": ["KeyError: 1"], "time": 5.0,
             "parameters": ["a.b"]}  # fmt: skip
    writer.write_blob("handled", [error])
    if rank:
        writer.write_blob("note", {"kind": "exception", "time": 6.0, "code": 1, "site": line, "exception": error})
    writer.close()
    return path.read_bytes()


# --- stacks ----------------------------------------------------------------------------------------------------------

FAULTHANDLER = f"""\
Fatal Python error: Aborted

Thread 0x00007f10a8bfd6c0 [pt_autograd_0] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f10b9062b80 (most recent call first):
  File "{_TORCH}/distributed/distributed_c10d.py", line 2806 in all_reduce
  File "/home/me/tr\\xe4ning/train.py", line 57 in step
  File "/home/me/train.py", line ??? in <module>

Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
"""
PY_SPY_TEXT = """\
Process 4711: python -u train.py --rank 3
Python v3.11.7 (/usr/bin/python3.11)
Parent Process 4000: torchrun --nproc-per-node 2 train.py

Thread 4711 (active+gil): "MainThread"
    pthread_cond_wait (libc.so.6)
    c10d::ProcessGroupNCCL::WorkNCCL::synchronizeInternal(std::chrono::duration<long, std::ratio<1l, 1000l> >) (libtorch_cuda.so)
    std::_Function_handler<void (), c10d::Reducer::mark(unsigned long)::{lambda()#1}>::_M_invoke (reducer.cpp:31)
    barrier (torch/distributed/distributed_c10d.py:4159)
        Arguments:
            group: <ProcessGroup at 0x7f0>
            tricky: "a frame (evil.py:1)"
    main (train.py:80)
    <module> (train.py:84)
Thread 4720 (idle): "QueueFeederThread"
    wait (threading.py:327)
"""  # noqa: E501
PY_SPY_JSON = json.dumps([
    {"pid": 4711, "thread_id": 140, "thread_name": "MainThread", "os_thread_id": 4711, "active": True, "owns_gil": True,
     "frames": [
         {"name": "poll", "filename": "", "module": "/usr/lib/libc.so.6", "short_filename": None, "line": 0},
         {"name": "barrier", "filename": f"{_TORCH}/distributed/distributed_c10d.py", "module": None, "line": 4159},
         {"name": "main", "filename": "/home/me/train.py", "module": None, "line": 80}],
     "process_info": {"pid": 4711, "command_line": "python train.py", "parent": None}},
    {"pid": 4712, "thread_id": 141, "thread_name": None, "os_thread_id": None, "active": False, "owns_gil": False,
     "frames": []},
], indent=1)  # fmt: skip
GDB = """\
[New LWP 7001]
Attaching to program: /usr/bin/python3.11, process 7000

Thread 2 (Thread 0x7f842b7fe6c0 (LWP 7001) "pt_gloo_runloop"):
#0  ___pthread_cond_timedwait64 (cond=0x7f84, mutex=0x7f85) at ./nptl/pthread_cond_wait.c:643
#1  0x00007f8445d647fd in gloo::(anonymous namespace)::ring(gloo::detail::AllreduceOptionsImpl const&, std::function<void (unsigned long)>) ()
   from /opt/torch/lib/libtorch_cpu.so
#2  0x00007f843ced44a3 in ?? () from /lib/libstdc++.so.6

Thread 1 (Thread 0x7f845483fb80 (LWP 7000) "python"):
#0  0x00007f84540a65d8 in take_gil (tstate=0x0) at Python/ceval_gil.h:223
#1  0x00007f844396984b in c10d::Work::operator()(std::pair<int, long>) const () from /opt/torch/lib/libtorch_cpu.so
 (inlined by) c10d::Work::synchronize() at Work.cpp:33
#2  <signal handler called>
#3  0x000052 in PyEval_EvalFrameEx (f=Frame 0x7f34, for file /home/me/train.py, line 58, in train (self=<T(x=1) at remote 0x7f3>), throwflag=0) at ceval.c:3000
Traceback (most recent call first):
  <built-in method wait of Work object at remote 0x7f910957bea0>
  File "/home/me/train.py", line 57, in train
    dist.all_reduce(loss)
--Type <RET> for more, q to quit, c to continue without paging--#4  0x000055f68cbb9081 in _start ()
[Inferior 1 (process 7000) detached]
PID 6985 - process
TID 6985:
#0  0x00007f84540a3f16 __futex_abstimed_wait_common
#1  0x00007f844396984b c10d::Work::wait(long) - /opt/torch/lib/libtorch_cpu.so
"""  # noqa: E501
PYSTACK = f"""\
Core file information:
state: t zombie: True niceness: 0
pid: 6988 ppid: 10087 sid: 5063
executable: python arguments: python train.py RANK=6

Traceback for thread 7008 (python) [Waiting for the GIL] (most recent call last):
    (Python) File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap
        self._bootstrap_inner()
The frame stack for thread 7010 is empty
Traceback for thread 6988 (python) [Has the GIL] (most recent call last):
    (C) File "???", line 0, in _start (/usr/bin/python3.11)
    (Python) File "/home/me/train.py", line 84, in <module>
        main()
      Arguments:
        loss: <Tensor at 0x7f84352079d0>
    (Python) File "{_TORCH}/distributed/distributed_c10d.py", line 5356, in barrier
    (C) File "Modules/main.c", line 710, in pymain_main (inlined) (/usr/lib/libpython3.11.so.1.0)
    (C) File "???", line 0, in c10d::Work::wait(std::chrono::duration<long, std::ratio<1l, 1000l> >) (libtorch_cpu.so)
"""
WATCHDOG = f"""\
[rank3]:[E1023 04:55:17.113400444 ProcessGroupNCCL.cpp:1895] [PG ID 0 Rank 3] Stack trace of the failed collective:
#0 all_reduce from {_TORCH}/distributed/distributed_c10d.py:2501
#1 train from /home/me/train.py:57
#2 <module> from /home/me/train.py:84

[rank3]:[E1023 04:55:17.1 ProcessGroupNCCL.cpp:629] Some NCCL operations have failed or timed out.
"""
MIXED = f"""\
===== rank 0 (host-a) =====
{FAULTHANDLER}
==> stacks/rank_1.txt <==
{PY_SPY_TEXT}
## Rank 2, local rank 0, pid 7000
{GDB}
[rank3]: {PYSTACK.replace(chr(10), chr(10) + "[rank3]: ")}
4: {PY_SPY_TEXT.replace(chr(10), chr(10) + "4: ")}
host-b: {FAULTHANDLER.replace(chr(10), chr(10) + "host-b: ")}
{WATCHDOG}"""
STACKS = (FAULTHANDLER, PY_SPY_TEXT, PY_SPY_JSON, GDB, PYSTACK, WATCHDOG, MIXED)
STACK_NAMES = (
    "stacks.txt", "rank3.txt", "3.json", "host-a_rank3.pyspy", "rank_3/stacks.txt", "local_rank_1.txt", "pid4711.txt",
    "r12.out", "99999999999.txt", "", "/", "rank\n3.txt", "rank" * 60 + ".txt", "rank-" * 60, "." * 200,
)  # fmt: skip
