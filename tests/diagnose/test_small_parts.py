"""Spellings, echoes, words, frames and log texts."""

from __future__ import annotations

import pytest

from rankcall.diagnose import echoes, words
from rankcall.diagnose.doing import spoken
from rankcall.diagnose.frames import code_of, is_user_file, without_remark
from rankcall.diagnose.kinds import algorithm, demands_equal_sizes, same_algorithm
from rankcall.diagnose.log_text import exception_in_log, fatal_stack, worker_frames
from rankcall.snapshot import Event, ExceptionNote, Frame, Wait

from .hand_made import TORCH, torch_frame


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("all_gather", "all_gather_into_tensor"),
        ("nccl:_allgather_base", "all_gather_single"),
        ("gloo:all_reduce", "allreduce_"),
        ("all_reduce_coalesced", "all_reduce"),
        ("_reduce_scatter_base", "reduce_scatter_tensor"),
        ("broadcast_object_list", "broadcast"),
        ("", "anything"),
    ],
)
def test_spellings_of_one_algorithm(one: str, other: str) -> None:
    assert same_algorithm(one, other)


@pytest.mark.parametrize(
    ("one", "other"), [("all_reduce", "all_gather"), ("barrier", "all_reduce"), ("reduce", "all_reduce")]
)
def test_different_algorithms(one: str, other: str) -> None:
    assert not same_algorithm(one, other, "gloo")


def test_gloo_shows_reduce_scatter_as_all_reduce_but_nccl_does_not() -> None:
    assert same_algorithm("reduce_scatter", "all_reduce", "gloo")
    assert not same_algorithm("reduce_scatter", "all_reduce", "nccl")


def test_an_operation_of_tomorrow_keeps_its_name() -> None:
    assert algorithm("nccl:all_to_some_v2") == "all_to_some_v2"


def test_sizes_are_compared_only_where_they_must_be_equal() -> None:
    assert demands_equal_sizes(Wait("collective", "all_reduce"))
    assert not demands_equal_sizes(Wait("collective", "all_to_all_single"))
    assert not demands_equal_sizes(Wait("collective", "all_gather", outer="all_gather_object"))
    assert not demands_equal_sizes(Wait("collective", "scatter"))


ECHOES = [
    "[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:48201. This is typically caused by",
    "[transport/tcp/pair.cc:537] Read error [127.0.0.1]:32178: Connection reset by peer",
    "[transport/tcp/unbound_buffer.cc:81] Timed out waiting 8000ms for recv operation to complete",
    "Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error",
    "Rank 0: [monitoredBarrier] Ranks 2 failed to pass monitoredBarrier in 5000 ms",
    "Application timeout caused pair closure",
    "NCCL communicator was aborted on rank 3.",
    "wait timeout after 300000ms, keys: /default_pg/0//cpu//0/rank_2",
    "Socket Timeout",
    "Broken pipe",
    "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE) ran for 600000 ms",
    "failed to recv, got 0 bytes",
    "The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500).",
]


@pytest.mark.parametrize("text", ECHOES)
def test_what_ranks_say_of_a_peer_is_an_echo(text: str) -> None:
    assert echoes.nature(ExceptionNote("RuntimeError", text)) == "echo"
    assert echoes.nature(ExceptionNote("torch.distributed.DistBackendError", text)) == "echo"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("ValueError", "label 11 is not one of 10 classes"),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (4x8 and 16x4)"),
        ("KeyError", "'timeout'"),
        ("RuntimeError", "Expected to have finished reduction in the prior iteration before starting a new one."),
        ("RuntimeError", "DataLoader worker (pid 12) exited unexpectedly with exit code 3."),
        ("torch.OutOfMemoryError", "CUDA out of memory."),
    ],
)
def test_a_rank_s_own_exception_is_no_echo(kind: str, text: str) -> None:
    assert echoes.nature(ExceptionNote(kind, text)) == "own"


def test_the_program_s_own_socket_is_the_program_s() -> None:
    note = ExceptionNote("ConnectionResetError", "[Errno 104] Connection reset by peer", (Frame("/home/me/get.py", 4),))
    assert echoes.nature(note) == "own"


def test_a_request_to_stop_is_neither() -> None:
    for kind in ("KeyboardInterrupt", "torch.distributed.elastic.multiprocessing.api.SignalException"):
        assert echoes.nature(ExceptionNote(kind, "")) == "stopped"


def test_ranks_are_grouped_and_cut() -> None:
    assert words.ranks_text((2,)) == "rank 2"
    assert words.ranks_text([*range(37), *range(38, 64)]) == "ranks 0-36, 38-63"
    assert words.ranks_text((0, 1, 3)) == "ranks 0, 1, 3"
    many = words.ranks_text(range(0, 4096, 2))
    assert len(many) < 80 and "2048 in all" in many


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.43, "0.4 s"), (12, "12 s"), (119.6, "2 min"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


def test_operations_are_called_as_the_user_called_them() -> None:
    assert (
        words.operation(Event(0, 0.0, "collective", op="all_gather", outer="all_gather_object")) == "all_gather_object"
    )
    assert words.operation(Wait("p2p", "recv", peer=3)) == "recv from rank 3"
    assert words.operation(Wait("p2p", "isend", peer=0)) == "isend to rank 0"
    assert words.operation(Wait("init", "init_process_group")) == "init_process_group"


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/me/train.py", True),
        ("train.py", True),
        ("/opt/lib/models/torch/net.py", True),
        (f"{TORCH}/nn/modules/module.py", False),
        ("/usr/lib/python3.11/threading.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("/x/dist-packages/numpy/core.py", False),
        ("", False),
    ],
)
def test_the_user_s_own_files(file: str, own: bool) -> None:
    assert is_user_file(file, {}) is own


def test_a_kept_file_is_the_user_s_wherever_it_lies() -> None:
    assert is_user_file(
        "/venv/lib/python3.11/site-packages/mine/train.py", {"/venv/lib/python3.11/site-packages/mine/train.py": ""}
    )


def test_code_is_found_by_python_s_own_line_ends() -> None:
    sources = {"/a.py": "one\x0c\r\ntwo\rthree\n"}
    assert code_of(Frame("/a.py", 2), sources) == "two"
    assert code_of(Frame("/a.py", 3), sources) == "three"
    assert code_of(Frame("/a.py", 99), sources) == ""


def test_a_traceback_is_read_from_the_log_s_end() -> None:
    lines = (
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/home/me/train.py", line 12, in main',
        "[rank1]:     check(y)",
        "[rank1]: ValueError: label 11",
    )
    note = exception_in_log(lines)
    assert note is not None
    assert (note.type, note.message, note.frames) == (
        "ValueError",
        "label 11",
        (Frame("/home/me/train.py", 12, "main"),),
    )


def test_logs_without_a_traceback_say_nothing() -> None:
    assert exception_in_log(("ValueError: printed by hand", "step 3")) is None
    assert exception_in_log(()) is None


def test_faulthandler_s_current_thread_is_the_one_that_died() -> None:
    lines = (
        "Fatal Python error: Segmentation fault",
        "",
        "Thread 0x01 (most recent call first):",
        '  File "/usr/lib/python3.11/threading.py", line 3 in wait',
        "",
        "Current thread 0x02 (most recent call first):",
        '  File "/home/me/train.py", line 8 in step',
        '  File "/home/me/train.py", line 20 in <module>',
    )
    assert [frame.line for frame in fatal_stack(lines)] == [8, 20]


def test_a_worker_s_own_frames_are_read_from_the_message() -> None:
    message = (
        "Caught KeyError in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n"
        '  File "/home/me/data.py", line 9, in __getitem__\n'
    )
    assert worker_frames(message) == (Frame("/home/me/data.py", 9, "__getitem__"),)
    assert torch_frame().file.startswith(TORCH)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("loss.backward()  # the slow part", "loss.backward()"),
        ("print('# 1', \"# 2\")", "print('# 1', \"# 2\")"),
        ("x = f'{a}#{b}'  # '", "x = f'{a}#{b}'"),
        ("# nothing else", "# nothing else"),
    ],
)
def test_quoted_code_comes_without_its_remarks(line: str, code: str) -> None:
    assert without_remark(line) == code


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ("receiving a socket to 10.0.0.7:80", "receiving from a socket to 10.0.0.7:80"),
        ("accepting a connection a socket", "accepting a connection on a socket"),
        ("waiting for a file lock /tmp/a.lock", "waiting for a file lock on /tmp/a.lock"),
        ("waiting for a child process", "waiting for a child process"),
        ("reading", "reading"),
    ],
)
def test_system_calls_are_spoken_as_people_do(seen: str, said: str) -> None:
    assert spoken(seen) == said
