"""Stack dumps in every form that people have them: who they are of, what they show, and that nothing in them hurts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankcall.diagnose.frames import is_user_file
from rankcall.diagnose.readers.native_names import native_name
from rankcall.diagnose.readers.stack_files import one_per_process, stacks_from_text
from rankcall.diagnose.readers.stack_labels import lines_of
from rankcall.diagnose.readers.stack_origins import origin_of_command, origin_of_heading, origin_of_name
from rankcall.diagnose.readers.stack_sample import MOST_FRAMES, StackSample, is_native, python_frames
from rankcall.diagnose.readers.stack_threads import snapshot_threads
from rankcall.diagnose.readers.stack_waits import wait_from_stack
from rankcall.snapshot import Frame

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
USER = Frame("/home/u/train.py", 57, "train")

# The shapes that the tools write; names and numbers are made up.
WAITING = """\
Process 4100: /opt/venv/bin/python -u train.py --lr 0.1
Python v3.11.7 (/opt/python/bin/python3.11)

Thread 4100 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3252)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    train (train.py:57)
    main (train.py:80)
    <module> (train.py:84)
Thread 4130 (idle): "QueueFeederThread"
    Condition.wait (threading.py:327)
    Queue._feed (multiprocessing/queues.py:231)
    Thread._bootstrap (threading.py:1002)
"""
LOADING = """\
Process 4101: /opt/venv/bin/python -u train.py --lr 0.1
Python v3.11.7 (/opt/python/bin/python3.11)

Thread 4101 (active): "MainThread"
    _PollLikeSelector.select (selectors.py:415)
    _MultiProcessingDataLoaderIter._try_get_data (torch/utils/data/dataloader.py:1291)
    _BaseDataLoaderIter.__next__ (torch/utils/data/dataloader.py:725)
    train (train.py:54)
    main (train.py:80)
    <module> (train.py:84)
"""
NATIVE = """\
Process 4102: python train.py
Python v3.10.12 (/usr/bin/python3.10)

Thread 0x7F12AB34CD00 (active+gil): "MainThread"
    0x7efdef2a3f16 (libc.so.6)
    pthread_cond_wait (libc.so.6)
    __gnu_cxx::__nothrow_wait_cv::wait (compatibility-condvar.cc:100)
    c10d::Reducer::finalize_backward (libtorch_cpu.so)
    std::_Function_handler<void (), c10d::Reducer::mark_ready(unsigned long)::{lambda()#1}>::_M_invoke (libtorch_cpu.so)
    torch::autograd::Engine::execute (libtorch_cpu.so)
    pybind11::cpp_function::initialize<bool, c10d::Work, std::chrono::duration<long, std::ratio<(long)1, (long)1000> >>(bool (c10d::Work::*)(int), char const (&) [654])::_FUN (libtorch_python.so)
    THPEngine_run_backward (libtorch_python.so)
    _engine_run_backward (torch/autograd/graph.py:979)
    backward (torch/_tensor.py:623)
    train (train.py:58)
    <module> (train.py:84)
    _PyEval_EvalFrameDefault (libpython3.10.so.1.0)
"""  # noqa: E501
LOCALS = """\
Process 4103: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4103 (idle): "MainThread"
    barrier (torch/distributed/distributed_c10d.py:5356)
        Arguments:
            group: <ProcessGroup at 0x7f8453dd08f0>
            note: "looks like a frame (evil.py:1)"
        Locals:
            work: <Work at 0x7f84351ba530>
            looks (evil.py:2)
    train (train.py:60)
        Arguments:
            self: <Trainer at 0x7f84352079d0>
    <module> (train.py:84)
"""
SUBPROCESSES = """\
Process 300: /opt/venv/bin/python /opt/venv/bin/torchrun --nproc-per-node=2 train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 300 (idle): "MainThread"
    _monitor_workers (torch/distributed/elastic/agent/server/local_elastic_agent.py:300)
    <module> (torchrun:8)

--------------------------------------------------------------------------------
Process 301: python train.py
Python v3.11.7 (/usr/bin/python3.11)
Parent Process 300: /opt/venv/bin/python /opt/venv/bin/torchrun --nproc-per-node=2 train.py

Thread 301 (idle): "MainThread"
    train (train.py:57)
    <module> (train.py:84)

--------------------------------------------------------------------------------
Process 310: python train.py
Python v3.11.7 (/usr/bin/python3.11)
Parent Process 301: python train.py

Thread 310 (idle): "MainThread"
    Photos.__getitem__ (data.py:16)
    _MapDatasetFetcher.fetch (torch/utils/data/_utils/fetch.py:54)
    _worker_loop (torch/utils/data/_utils/worker.py:374)
    DataLoader.__iter__ (torch/utils/data/dataloader.py:505)
    train (train.py:54)
    <module> (train.py:84)
"""
AS_JSON = f"""\
[
  {{
    "pid": 4104,
    "thread_id": 140206330346368,
    "thread_name": "MainThread",
    "os_thread_id": 4104,
    "active": true,
    "owns_gil": true,
    "frames": [
      {{"name": "poll", "filename": "", "module": "/usr/lib/libc.so.6", "short_filename": null, "line": 0}},
      {{"name": "broadcast", "filename": "{C10D}", "module": null, "line": 3151}},
      {{"name": "broadcast_object_list", "filename": "{C10D}", "module": null, "line": 4026}},
      {{"name": "train", "filename": "/home/u/train.py", "module": null, "line": 61}}
    ],
    "process_info": null
  }}
]
"""
FAULTHANDLER = f"""\
Thread 0x00007fc7269256c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007fc748062b80 (most recent call first):
  File "{C10D}", line 3252 in all_reduce
  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/u/train.py", line 57 in train
  File "/home/u/train.py", line 84 in <module>
"""
GDB = """\
[New LWP 7001]
[Thread debugging using libthread_db enabled]
__futex_abstimed_wait_common64 (private=0, cancel=true) at ./nptl/futex-internal.c:57
57\t./nptl/futex-internal.c: No such file or directory.

Thread 2 (Thread 0x7f842b7fe6c0 (LWP 7001) "pt_gloo_runloop"):
#0  ___pthread_cond_timedwait64 (cond=0x7f841c0091b0, mutex=0x7f841c009158) at ./nptl/pthread_cond_wait.c:643
#1  0x00007f8445d9cae9 in gloo::transport::tcp::UnboundBuffer::waitSend(int*, std::chrono::duration<long, std::ratio<1l, 1000l> >) () from /opt/torch/lib/libtorch_cpu.so
#2  0x00007f8445d647fd in gloo::(anonymous namespace)::ring(gloo::detail::AllreduceOptionsImpl const&, std::function<void (unsigned long)>) () from /opt/torch/lib/libtorch_cpu.so
#3  0x00007f8443929d50 in c10d::AsyncAllreduceWork::allreduce(std::vector<at::Tensor, std::allocator<at::Tensor> >&) () from /opt/torch/lib/libtorch_cpu.so
#4  0x00007f8443912143 in c10d::ProcessGroupGloo::runLoop(int) () from /opt/torch/lib/libtorch_cpu.so
#5  0x00007f843ced44a3 in ?? () from /lib/libstdc++.so.6
#6  0x00007f84541278ec in clone3 () at ../sysdeps/unix/sysv/linux/x86_64/clone3.S:81

Thread 1 (Thread 0x7f845483fb80 (LWP 7000) "python"):
#0  0x00007f84540a65d8 in __pthread_cond_wait_common (abstime=0x0) at ./nptl/pthread_cond_wait.c:503
#1  0x00007f844396984b in c10d::Work::wait(std::chrono::duration<long, std::ratio<1l, 1000l> >) () from /opt/torch/lib/libtorch_cpu.so
 (inlined by) c10d::Work::synchronize() at Work.cpp:33
#2  <signal handler called>
#3  0x00007f8452ccc5e8 in pybind11::cpp_function::dispatcher(_object*, _object* const*) () from /opt/torch/lib/libtorch_python.so
#4  0x00007f84542fd9c3 in _PyEval_EvalFrameDefault (tstate=<optimized out>, throwflag=0) at Python/ceval.c:4769
#5  0x000055f68cbb9081 in _start ()
[Inferior 1 (process 7000) detached]
"""  # noqa: E501
GDB_ON_A_TERMINAL = """\
(gdb) thread apply all bt

Thread 1 (Thread 0x7f05dc0d1740 (LWP 135332)):
#0  0x00007f05daa8fe8b in pthread_rwlock_wrlock ()
   from /usr/lib/x86_64-linux-gnu/libpthread.so.0
#1  0x00007f0580bb3641 in ?? () from /usr/lib/x86_64-linux-gnu/libcuda.so
#2  0x00007f04fc98d6e6 in ncclGroupEnd ()
   from /usr/lib/x86_64-linux-gnu/libnccl.so.2
--Type <RET> for more, q to quit, c to continue without paging--#3  0x00007f05da06e256 in c10d::ProcessGroupNCCL::allgather(std::vector<at::Tensor>&) ()
   from /opt/torch/lib/libtorch_cuda.so
(gdb) quit
"""  # noqa: E501
PY_BT = f"""\
Thread 2 (Thread 0x7fc728ffd6c0 (LWP 10102) "pt_gloo_runloop"):
Unable to locate python frame

Thread 1 (Thread 0x7fc748062b80 (LWP 10089) "python"):
Traceback (most recent call first):
  <built-in method wait of Work object at remote 0x7f910957bea0>
  File "{C10D}", line 3252, in all_reduce
    work.wait()
  File "/home/u/train.py", line 57, in train
    dist.all_reduce(loss)
  File "/home/u/train.py", line 84, in <module>
    main()
#0  0x00007fc74791a26f in __GI___poll (fds=0x7fc728c42040, nfds=1) at poll.c:29
#1  0x00007f844396984b in c10d::Work::wait(long) () from /opt/torch/lib/libtorch_cpu.so
#2  0x00007fc747afd9c3 in _PyEval_EvalFrameDefault (tstate=<optimized out>) at Python/ceval.c:4769
#3  0x00007fc747afd9c4 in main (argc=3) at main.c:1
"""
OLD_BT = """\
#0  0x00007f38 in sem_wait () from /lib/libpthread.so.0
#1  0x00000050 in take_gil (tstate=0x1) at Python/ceval_gil.h:223
#2  0x00000051 in PyEval_EvalFrameEx (f=Frame 0x7f3484000910, for file /home/u/train.py, line 58, in train (self=<T(x=1) at remote 0x7f3>, n=3), throwflag=0) at ceval.c:3000
#3  0x00000052 in PyEval_EvalFrameEx (f=Frame 0x7f3484000a10, for file /home/u/train.py, line 84, in <module> (), throwflag=0) at ceval.c:3000
"""  # noqa: E501
EU_STACK = """\
PID 6985 - process
TID 6985:
#0  0x00007f84540a3f16 __futex_abstimed_wait_common
#1  0x00007f844396984b c10d::Work::wait(std::chrono::duration<long> ) - /opt/torch/lib/libtorch_cpu.so
TID 6990:
#0  0x00007f8454126f36 epoll_wait
#1  0x00007f8445d7d62d gloo::transport::tcp::Loop::run() - /opt/torch/lib/libtorch_cpu.so
"""
PYSTACK = f"""\
Traceback for thread 7008 (python) [] (most recent call last):
    (Python) File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap
        self._bootstrap_inner()
    (Python) File "/usr/lib/python3.11/threading.py", line 327, in wait
        waiter.acquire()

The frame stack for thread 7010 is empty
Traceback for thread 6988 (python) [Has the GIL] (most recent call last):
    (C) File "???", line 0, in _start (/usr/bin/python3.11)
    (Python) File "/home/u/train.py", line 84, in <module>
        main()
    (Python) File "/home/u/train.py", line 60, in train
        dist.barrier()
      Arguments:
        loss: <Tensor at 0x7f84352079d0>
    (Python) File "{C10D}", line 5356, in barrier
        work.wait()
    (C) File "Modules/main.c", line 710, in pymain_main (inlined) (/usr/lib/libpython3.11.so.1.0)
    (C) File "???", line 0, in c10d::Work::wait(std::chrono::duration<long, std::ratio<1l, 1000l> >) (/opt/torch/lib/libtorch_cpu.so)
"""  # noqa: E501
PYSTACK_CORE = f"""\
Core file information:
state: t zombie: True niceness: 0
pid: 6988 ppid: 10087 sid: 5063
uid: 0 gid: 0 pgrp: 9835
executable: python arguments: python train.py RANK=6

The process died due receiving signal SIGABRT
{PYSTACK}"""
WATCHDOG = f"""\
[rank3]:[E1023 04:55:17.113400444 ProcessGroupNCCL.cpp:1895] [PG ID 0 Rank 3] Stack trace of the failed collective:
#0 all_reduce from {C10D}:2501
#1 wrapper from {TORCH}/distributed/c10d_logger.py:81
#2 train from /home/u/train.py:57
#3 <module> from /home/u/train.py:84

[rank3]:[E1023 04:55:17.113400444 ProcessGroupNCCL.cpp:629] Some NCCL operations have failed or timed out.
"""


def read(text: str, name: str = "") -> list[StackSample]:
    return stacks_from_text(text.encode(), name)


def only(text: str, name: str = "") -> StackSample:
    found = read(text, name)
    assert len(found) == 1
    return found[0]


def names(sample: StackSample) -> list[str]:
    assert sample.main is not None
    return [frame.function.rpartition(".")[2] for frame in sample.main.frames]


# --- one form after another -------------------------------------------------------------------------------------


def test_py_spy_text() -> None:
    sample = only(WAITING)
    assert (sample.pid, sample.command, sample.role) == (4100, "/opt/venv/bin/python -u train.py --lr 0.1", "rank")
    assert names(sample) == ["all_reduce", "wrapper", "train", "main", "<module>"]
    assert [(t.tid, t.name, t.main, t.state, t.native) for t in sample.threads] == [
        (4100, "MainThread", True, "idle", False),
        (4130, "QueueFeederThread", False, "idle", False),
    ]


def test_short_names_of_libraries_are_told_from_the_users_files() -> None:
    frames = [frame for text in (WAITING, LOADING, SUBPROCESSES) for s in read(text) for t in s.threads
              for frame in t.frames]  # fmt: skip
    own = {frame.file for frame in frames if is_user_file(frame.file, {})}
    assert own == {"train.py", "data.py"}
    assert "…/lib/python3.11/selectors.py" in {frame.file for frame in frames}


@pytest.mark.parametrize(
    ("short", "own"),
    [
        ("torch/nn/functional.py", False), ("queue.py", False), ("typing_extensions.py", False), ("torchrun", False),
        ("deepspeed/runtime/engine.py", False), ("<frozen runpy>", False), ("<string>", False),
        ("cabcdefghijklmnopqrstuvwxyz234567abcdefghijklmnopqr.py", False),
        ("train.py", True), ("fairseq/trainer.py", True), ("code/train.py", True), ("my project (copy)/train.py", True),
        ("statistics.py", True), ("/home/u/torch_things/train.py", True),
    ],
)  # fmt: skip
def test_whose_a_short_name_is(short: str, own: bool) -> None:
    sample = only(
        f'Process 1: python\nPython v3.9.1 (/usr/bin/python)\n\nThread 1 (idle): "MainThread"\n    f ({short}:3)'
    )
    frame = sample.threads[0].frames[0]
    assert (is_user_file(frame.file, {}), frame.line, frame.function) == (own, 3, "f")
    assert short in frame.file


def test_py_spy_with_native_frames() -> None:
    sample = only(NATIVE)
    assert sample.main is not None
    assert sample.main.native
    assert (sample.main.tid, sample.main.state) == (0x7F12AB34CD00, "active+gil")
    native = [frame.function for frame in sample.main.frames if is_native(frame)]
    assert native == [
        "pthread_cond_wait", "__gnu_cxx::__nothrow_wait_cv::wait", "c10d::Reducer::finalize_backward",
        "std::_Function_handler::_M_invoke", "torch::autograd::Engine::execute", "THPEngine_run_backward",
    ]  # fmt: skip
    assert [frame.line for frame in python_frames(sample.main.frames)] == [979, 623, 58, 84]


def test_py_spy_with_locals() -> None:
    assert names(only(LOCALS)) == ["barrier", "train", "<module>"]


def test_py_spy_with_subprocesses() -> None:
    agent, rank, worker = read(SUBPROCESSES)
    assert [(s.pid, s.parent, s.role) for s in (agent, rank, worker)] == [
        (300, None, "launcher"), (301, 300, "rank"), (310, 301, "loader-worker"),
    ]  # fmt: skip
    _, rank, worker = read(SUBPROCESSES, "rank5.txt")
    assert (rank.rank, worker.rank) == (5, 5)


def test_py_spy_json() -> None:
    sample = only(AS_JSON, "stack_rank_3.json")
    assert (sample.rank, sample.pid) == (3, 4104)
    assert names(sample) == ["poll", "broadcast", "broadcast_object_list", "train"]
    assert sample.main is not None
    assert (sample.main.state, sample.main.native) == ("active+gil", True)


def test_several_json_dumps_in_one_file_with_headings() -> None:
    other = AS_JSON.replace("4104", "4105")
    assert [s.pid for s in read(AS_JSON + other)] == [4104, 4105]
    both = read(f"===== rank 2 =====\n{AS_JSON}\n===== rank 1 =====\n{other}")
    assert [(s.rank, s.pid) for s in both] == [(2, 4104), (1, 4105)]


def test_faulthandler() -> None:
    sample = only(FAULTHANDLER, "host-a_rank3.log")
    assert (sample.rank, sample.host, sample.pid) == (3, "host-a", None)
    assert names(sample) == ["all_reduce", "wrapper", "train", "<module>"]
    assert len(sample.threads) == 2


def test_faulthandler_of_several_processes_in_one_stream() -> None:
    other = FAULTHANDLER.replace("0x00007fc7", "0x00007fd7")
    assert len(read(FAULTHANDLER + other)) == 2
    assert len(read(FAULTHANDLER + "some line of the job\n" + FAULTHANDLER)) == 2
    # Threads of a program that was started in another way: the same ones again are a second look.
    assert len(read((FAULTHANDLER * 2).replace("<module>", "run_path"))) == 2
    # A thread that crashed is not the main one: that comes last.
    crash = "Fatal Python error: Segmentation fault\n\n" + FAULTHANDLER.replace("Current thread", "Thread").replace(
        "Thread 0x00007fc7269256c0", "Current thread 0x00007fc7269256c0"
    )
    assert names(only(crash))[0] == "all_reduce"


def test_gdb() -> None:
    sample = only(GDB, "3.txt")
    assert (sample.rank, sample.pid) == (3, 7000)
    assert names(sample) == [
        "__pthread_cond_wait_common", "c10d::Work::wait", "c10d::Work::synchronize", "<signal handler called>",
    ]  # fmt: skip
    assert [t.name for t in sample.threads] == ["python", "pt_gloo_runloop"]
    assert "gloo::(anonymous namespace)::ring" in [frame.function for frame in sample.threads[1].frames]
    assert not sample.has_python


def test_gdb_on_a_terminal_wraps_and_asks() -> None:
    sample = only(GDB_ON_A_TERMINAL)
    assert names(sample) == ["pthread_rwlock_wrlock", "ncclGroupEnd", "c10d::ProcessGroupNCCL::allgather"]
    assert [frame.file for frame in sample.threads[0].frames] == [
        "<native libpthread.so.0>", "<native libnccl.so.2>", "<native libtorch_cuda.so>",
    ]  # fmt: skip


def test_gdb_with_python_frames() -> None:
    sample = only(PY_BT)
    assert sample.pid == 10089
    assert names(sample) == ["__GI___poll", "c10d::Work::wait", "all_reduce", "train", "<module>"]
    old = only(OLD_BT)
    assert names(old) == ["sem_wait", "take_gil", "train", "<module>"]
    assert old.threads[0].state == "waiting for the GIL"


def test_a_second_look_in_one_gdb_session_counts() -> None:
    second = "#0  0x00007f01 in read () from /lib/libc.so.6\n#1  0x00007f02 in load_shard () from /opt/lib/data.so\n"
    assert names(only(f"(gdb) {OLD_BT.splitlines()[0]}\n(gdb) {second}(gdb) quit\n")) == ["read", "load_shard"]
    # A frame that is shown again is not there twice.
    assert names(only(second + second.splitlines()[1] + "\n")) == ["read", "load_shard"]


def test_two_processes_in_one_gdb_log() -> None:
    both = read(GDB + GDB.replace("7000", "8000").replace("7001", "8001"))
    assert [(s.pid, len(s.threads)) for s in both] == [(7000, 2), (8000, 2)]


def test_eu_stack() -> None:
    sample = only(EU_STACK)
    assert (sample.pid, len(sample.threads)) == (6985, 2)
    assert names(sample) == ["__futex_abstimed_wait_common", "c10d::Work::wait"]


def test_pystack() -> None:
    sample = only(PYSTACK)
    assert (sample.pid, sample.parent) == (6988, None)
    assert names(sample) == ["c10d::Work::wait", "barrier", "train", "<module>"]
    assert sample.main is not None
    assert sample.main.state == "active+gil"
    core = only(PYSTACK_CORE)
    assert (core.pid, core.parent, core.rank, core.command) == (6988, 10087, 6, "python train.py RANK=6")
    assert len(read(PYSTACK + PYSTACK.replace("6988", "6999"))) == 2


def test_the_watchdogs_trace_of_a_failed_collective() -> None:
    sample = only(WATCHDOG)
    assert sample.rank == 3
    assert names(sample) == ["all_reduce", "wrapper", "train", "<module>"]
    wait = wait_from_stack(sample.threads[0].frames)
    assert wait is not None
    assert (wait.op, wait.site) == ("all_reduce", USER)


def test_forms_may_follow_one_another() -> None:
    found = read(
        f"===== rank 0 =====\n{WAITING}\n===== rank 1 =====\n{GDB}\n===== rank 2 =====\n{PYSTACK}{FAULTHANDLER}"
    )
    assert [(s.rank, s.pid) for s in found] == [(0, 4100), (1, 7000), (2, 6988), (2, None)]


@pytest.mark.parametrize(
    "text",
    ["", "hello\n", "[1, 2]", "[]", '{"a": 1}', "Process 12: python\n", "Error: Failed to find it\n   0: x\n",
     "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\n    x\nValueError: no (a.py:3)\n"],
)  # fmt: skip
def test_what_is_no_dump_is_none(text: str) -> None:
    assert read(text) == []


# --- forms in the wild ------------------------------------------------------------------------------------------


def indented(text: str, by: str) -> str:
    return "".join(f"{by}{line}" for line in text.splitlines(keepends=True))


@pytest.mark.parametrize("text", [WAITING, FAULTHANDLER, PY_BT, PYSTACK, GDB], ids=lambda text: text[:12])
@pytest.mark.parametrize("shape", ["plain", "windows", "fenced", "indented", "quoted", "coloured", "timed", "cut-off"])
def test_the_same_stack_in_whatever_shape_it_was_posted(text: str, shape: str) -> None:
    shapes = {
        "plain": text,
        "windows": text.replace("\n", "\r\n"),
        "fenced": f"The stack of the hanging rank:\n```\n{text}```\nAny idea?\n",
        "indented": indented(text, "    "),
        "quoted": indented(text, "> "),
        "coloured": "\x1b]0;title\x07" + indented(text, "\x1b[1m\x1b[0m"),
        "timed": indented(text, "2026-01-02T03:04:05.678Z "),
        "cut-off": text[:-3],
    }
    expected, found = only(text), only(shapes[shape])
    assert names(found)[:-1] == names(expected)[:-1]
    assert len(found.threads) == len(expected.threads)


def test_all_indentation_lost() -> None:
    for text in (WAITING, LOCALS, PYSTACK, FAULTHANDLER):
        assert names(only("".join(line.lstrip() for line in text.splitlines(keepends=True))))[0] == names(only(text))[0]


HEADINGS = {
    "===== rank 3 =====": (3, ""), "========rank3=================": (3, ""), "## Rank 3": (3, ""),
    "--- rank 3 (host-a) ---": (3, "host-a"), "### global rank: 3 on node7": (3, "node7"), "rank 3:": (3, ""),
    "Rank3": (3, ""), "<summary>Rank 003</summary>": (3, ""), "==> logs/rank3.txt <==": (3, ""),
    "Stack trace of rank 3:": (3, ""), "**Rank 3**": (3, ""), "===== 3 =====": (3, ""),
    "==> host-b_rank3.pyspy <==": (3, "host-b"), "**** rank=3 host=gpu-9 pid=77 ****": (3, "gpu-9"),
}  # fmt: skip


@pytest.mark.parametrize("heading", HEADINGS)
def test_headings_name_the_rank(heading: str) -> None:
    sample = only(f"{heading}\n{WAITING}")
    assert (sample.rank, sample.host) == HEADINGS[heading]


@pytest.mark.parametrize(
    "line",
    ["    all_reduce (torch/distributed/distributed_c10d.py:3252)", "[rank 3 has joined", "the rank 3 process hangs",
     "INFO rank 3: step 100", "-----------", "#0  0x00007f in poll ()", "local_rank 3 is late", "", "    rank: 3,"],
)  # fmt: skip
def test_other_lines_are_no_headings(line: str) -> None:
    found = origin_of_heading(line)
    assert found is None or found.rank is None


def test_a_loop_over_pids_names_no_rank() -> None:
    text = "".join(f"=== {pid} ===\n{WAITING.replace('4100', str(pid))}" for pid in (4100, 4200))
    assert [(s.rank, s.pid) for s in read(text)] == [(None, 4100), (None, 4200)]
    plain = WAITING + LOADING
    assert [(s.rank, s.pid) for s in read(plain, "host-a.txt")] == [(None, 4100), (None, 4101)]
    # The name of one rank cannot hold for two.
    assert [s.rank for s in read(plain, "rank3.txt")] == [None, None]


def test_a_heading_for_each_host_and_rank() -> None:
    text = f"=== node-1 ===\n== rank 0 ==\n{WAITING}\n=== node-2 ===\n{LOADING}\n== rank 5 ==\n{NATIVE}"
    assert [(s.host, s.rank) for s in read(text)] == [("node-1", 0), ("node-2", None), ("node-2", 5)]
    banner = (
        f"----------------\nnode-1\n----------------\n{WAITING}----------------\nnode-2\n----------------\n{LOADING}"
    )
    assert [s.host for s in read(banner)] == ["node-1", "node-2"]


LABELS = {
    "srun": "{rank}: ", "padded srun": " {rank}: ", "torch": "[rank{rank}]: ",
    "mpirun": "[1,{rank}]<stdout>:", "prterun": "[prterun-host-123@1,{rank}]<stderr>: ",
    "hydra": "[{rank}] ", "compose": "rank-{rank}  | ",
    "timed": "2026-01-02 03:04:05,678 {rank}: ",
}  # fmt: skip


@pytest.mark.parametrize("label", LABELS)
def test_mixed_lines_of_several_ranks_are_told_apart(label: str) -> None:
    form = LABELS[label]
    lines = {0: WAITING.splitlines(), 12: LOADING.splitlines()}
    mixed = []
    for at in range(max(map(len, lines.values()))):
        mixed += [form.format(rank=rank) + part[at] for rank, part in lines.items() if at < len(part)]
    found = {s.rank: s for s in read("\n".join(mixed))}
    assert sorted(found) == [0, 12]  # type: ignore[type-var]
    assert names(found[0])[0] == "all_reduce"
    assert names(found[12])[0] == "select"
    assert len(found[0].threads) == 2


def test_labels_of_local_ranks_and_hosts() -> None:
    sample = only(indented(WAITING, "[default3]:"))
    assert (sample.rank, sample.local_rank) == (None, 3)
    assert [s.host for s in read(indented(WAITING, "gpu-7: ") + indented(LOADING, "gpu-8: "))] == ["gpu-7", "gpu-8"]
    assert only(indented(WAITING, "[pod/trainer-1/pytorch] ")).host == "trainer-1"


FILE_NAMES = {
    "rank3.txt": 3, "stack_rank_3.json": 3, "3.txt": 3, "host-a_rank3.pyspy": 3, "dumps/rank-03/stacks.txt": 3,
    "stack.3": 3, "job.out.3": 3, "py-spy_3.txt": 3, "dump-r3.txt": 3, "RANK=3.log": 3, "0003.json": 3,
    "pid3.txt": None, "local_rank3.txt": None, "pyspy_123456.txt": None, "train.txt": None, "node3.txt": None, "": None,
    "frank3.txt": None,
}  # fmt: skip


@pytest.mark.parametrize("name", FILE_NAMES)
def test_file_names(name: str) -> None:
    assert only(WAITING, name).rank == FILE_NAMES[name]


def test_what_names_and_command_lines_say() -> None:
    assert origin_of_name("gpu-7_rank3.txt").host == "gpu-7"
    assert origin_of_name("stack_rank3.txt").host == ""
    assert origin_of_name("local_rank2.txt").local_rank == 2
    assert origin_of_name("pyspy-pid-77.txt").pid == 77
    assert origin_of_command("env RANK=3 LOCAL_RANK=1 python train.py").rank == 3
    assert origin_of_command("python train.py --local-rank=1").local_rank == 1
    assert origin_of_command("python train.py --rank 12").rank == 12
    assert origin_of_command("python train.py --lora-rank 8 --adapter_rank=4").rank is None
    assert only(WAITING.replace("--lr 0.1", "--rank 9"), "x.txt").rank == 9
    # The pid in a file's name is no rank.
    assert only(WAITING, "4100.txt").rank is None


def test_one_look_of_each_process() -> None:
    later = WAITING.replace("all_reduce", "barrier")
    looks = read(f"== rank 0 ==\n{WAITING}{later}{GDB.replace('7000', '4100')}")
    assert len(looks) == 3
    (chosen,) = one_per_process(looks)
    assert names(chosen)[0] == "barrier"
    unknown = read(FAULTHANDLER + FAULTHANDLER)
    assert len(one_per_process(unknown)) == 2


def test_roles() -> None:
    spawned = WAITING.replace("    main (train.py:80)", "    _wrap (torch/multiprocessing/spawn.py:90)")
    assert only(spawned).role == "rank"
    parent = 'Process 9: python\n\nThread 9 (idle): "MainThread"\n    join (torch/multiprocessing/spawn.py:140)\n'
    assert only(parent, "rank3.txt").role == "launcher"
    assert only(parent, "rank3.txt").rank is None
    helper = 'Process 9: python\n\nThread 9 (idle): "MainThread"\n    main (multiprocessing/resource_tracker.py:140)\n'
    assert only(helper).role == "other"


# --- names, bounds, hostile input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("long", "short"),
    [
        ("c10d::Work::wait(std::chrono::duration<long, std::ratio<1l, 1000l> >)", "c10d::Work::wait"),
        ("gloo::(anonymous namespace)::ring(int)", "gloo::(anonymous namespace)::ring"),
        ("void at::native::foo<int, (char)3>(at::Tensor const&)", "at::native::foo"),
        ("std::function<void ()>::operator()() const", "std::function::operator()"),
        ("std::vector<int>::operator[](unsigned long)", "std::vector::operator[]"),
        ("pthread_cond_wait@@GLIBC_2.3.2", "pthread_cond_wait"),
        ("__new_sem_wait_slow64.constprop.0", "__new_sem_wait_slow64"),
        ("foo(int) [clone .isra.0]", "foo"),
        ("<signal handler called>", "<signal handler called>"),
        ("??", "??"),
        ("a<b<c<d", "a"),
        ("x" * 100_000, "x" * 160),
        ("", ""),
    ],
)
def test_native_names(long: str, short: str) -> None:
    assert native_name(long) == short


def test_deep_stacks_and_many_threads_are_bounded() -> None:
    deep = WAITING + "".join(f"    f{n} (train.py:{n})\n" for n in range(5_000))
    assert all(len(thread.frames) <= MOST_FRAMES for thread in only(deep).threads)
    outermost_first = PYSTACK.replace(
        f'    (Python) File "{C10D}"',
        '    (Python) File "/home/u/train.py", line 9, in f\n' * 9_000 + f'    (Python) File "{C10D}"',
    )
    assert names(only(outermost_first))[:2] == ["c10d::Work::wait", "barrier"]
    many = "Process 1: python\n" + "".join(f'Thread {n} (idle): "T"\n    f (a.py:3)\n' for n in range(5_000))
    assert len(only(many).threads) <= 500


def test_a_huge_line_is_cut() -> None:
    data = WAITING.encode() + b"    f (" + b"x" * 50_000_000
    assert len(stacks_from_text(data)) == 1
    assert max(map(len, lines_of(data))) < 20_000


SEEDS = [
    WAITING,
    NATIVE,
    LOCALS,
    SUBPROCESSES,
    AS_JSON,
    FAULTHANDLER,
    GDB,
    PY_BT,
    OLD_BT,
    PYSTACK_CORE,
    EU_STACK,
    WATCHDOG,
]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 4_000), st.binary(max_size=12), st.integers(0, 40)), max_size=8),
)
def test_damaged_dumps_do_no_harm(seed: str, damage: list[tuple[int, bytes, int]]) -> None:
    data = seed.encode()
    for at, inserted, removed in damage:
        data = data[:at] + inserted + data[at + removed :]
    for sample in stacks_from_text(data, "rank1.txt"):
        assert all(len(thread.frames) <= MOST_FRAMES for thread in sample.threads)
        assert all(0 <= frame.line < 10**9 for thread in sample.threads for frame in thread.frames)
        snapshot_threads(sample)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=2_000), st.text(max_size=60))
def test_any_bytes_under_any_name(data: bytes, name: str) -> None:
    assert isinstance(stacks_from_text(data, name), list)


# --- the real tools ---------------------------------------------------------------------------------------------

PROGRAM = """\
import faulthandler, os, signal, sys, time
import torch
import torch.distributed as dist

faulthandler.register(signal.SIGUSR1, file=open(sys.argv[2], "w"), all_threads=True)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(os.environ["RANK"]), world_size=2)
dist.barrier()
loss = torch.ones(1)

def average(loss):
    dist.all_reduce(loss)

print("ready", flush=True)
if dist.get_rank() == 1:
    time.sleep(600)
average(loss)
"""


@pytest.fixture(scope="module")
def hanging_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[subprocess.Popen[str]]]]:
    """Two ranks of gloo: rank 0 waits in all_reduce, rank 1 sleeps."""
    folder = tmp_path_factory.mktemp("hanging")
    (folder / "train.py").write_text(PROGRAM)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "train.py", str(folder / "store"), str(folder / f"faulthandler_rank{rank}.txt")],
            cwd=folder, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        yield folder, ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def _wait_and_phase(sample: StackSample) -> tuple[str, Frame | None]:
    thread = snapshot_threads(sample)[0]
    return (thread.wait.op if thread.wait is not None else ""), thread.phase_site


@pytest.mark.slow
def test_real_stacks_of_faulthandler(hanging_job: tuple[Path, list[subprocess.Popen[str]]]) -> None:
    folder, ranks = hanging_job
    lines = PROGRAM.splitlines()
    script = str(folder / "train.py")
    for number, line in ((0, "    dist.all_reduce(loss)"), (1, "    time.sleep(600)")):
        file = folder / f"faulthandler_rank{number}.txt"
        until = time.monotonic() + 60
        while True:
            os.kill(ranks[number].pid, signal.SIGUSR1)
            time.sleep(0.3)
            # The last look counts: the first ones may have come before the rank was there, or be half written.
            found = one_per_process(stacks_from_text(file.read_bytes(), str(file)))
            op, place = _wait_and_phase(found[-1]) if found else ("", None)
            there = place is not None and place.line == lines.index(line) + 1 and bool(op) == (number == 0)
            if there or time.monotonic() > until:
                break
        sample = found[-1]
        assert sample.rank == number
        op, site = _wait_and_phase(sample)
        assert op == ("all_reduce" if number == 0 else "")
        assert site is not None
        assert (site.file.rpartition("/")[2], site.line) == (script.rpartition("/")[2], lines.index(line) + 1)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--json"], ["--locals"], ["--full-filenames"], ["--subprocesses"]], ids=str)
def test_real_stacks_of_py_spy(hanging_job: tuple[Path, list[subprocess.Popen[str]]], options: list[str]) -> None:
    _, ranks = hanging_job
    program = Path(sys.executable).parent / "py-spy"
    if not program.exists():
        pytest.skip("py-spy is not installed beside this Python")
    line = PROGRAM.splitlines().index("    dist.all_reduce(loss)") + 1
    until = time.monotonic() + 30
    while True:
        dumps = [
            subprocess.run([program, "dump", "--pid", str(rank.pid), *options], capture_output=True, timeout=60)
            for rank in ranks
        ]
        if any(b"ermission denied" in dump.stderr or b"not permitted" in dump.stderr for dump in dumps):
            pytest.skip("this machine does not let py-spy look")
        samples = [sample for dump in dumps for sample in stacks_from_text(dump.stdout, "host.txt")]
        assert [sample.pid for sample in samples] == [rank.pid for rank in ranks]
        op, site = _wait_and_phase(samples[0])
        if op == "all_reduce" or time.monotonic() > until:
            break
        time.sleep(0.3)
    assert op == "all_reduce"
    assert site is not None
    assert (site.function, site.line) == ("average", line)
    assert _wait_and_phase(samples[1])[0] == ""
