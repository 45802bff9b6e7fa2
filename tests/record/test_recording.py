"""Given a program, then this record."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from rankcall.record import layout

from .conftest import INJECT, PROGRAMS, Runner


@pytest.mark.slow
def test_a_job_is_recorded_operation_by_operation(runner: Runner) -> None:
    recording = runner.job(2, PROGRAMS / "every_operation.py")
    assert recording.done.returncode == 0, recording.done.stderr[-3000:]
    first, second = recording.records()
    for rank, record in enumerate((first, second)):
        identity = record.identity()
        assert (identity["claimed_rank"], identity["world_size"], identity["backend"]) == (rank, 2, "gloo")
        assert identity["initialized"] == "destroyed"
        assert record.counter("faults") == 0, identity.get("faults")
        counters = record.counters()
        assert (counters.batches, counters.loader_ends) == (3, 1)
        assert (counters.forwards, counters.eval_forwards, counters.backwards) == (4, 1, 4)
        assert (counters.optimizer_steps, counters.scaler_steps) == (4, 1)
        assert record.loop_step() == 4
        note = record.exit_note()
        assert note is not None and (note.kind, note.code) == ("exit", 0)
        assert note.site is not None and note.site.file.endswith("every_operation.py")
        assert [handled.type for handled in record.handled()][-1] == "ValueError"
    groups = first.groups()
    assert [group.key for group in groups] == ["0-1#0", "0-1#1"]
    ring = first.ring(groups)
    assert [event.index for event in ring] == list(range(len(ring)))
    default = [event for event in ring if event.kind == "collective" and event.group == "0-1#0" and event.seq]
    numbers = [event.seq for event in default]
    refused = [event for event in default if event.op == "all_reduce" and event.numel is None]
    assert len(refused) == 1, "the call that torch refuses takes no number: the next one has it"
    assert numbers == sorted(numbers) and len(set(numbers)) == len(numbers) - 1, "c10d's own numbers, each once"
    ops = [event.op for event in default]
    assert ops[:6] == ["all_reduce", "all_reduce", "all_reduce", "broadcast", "reduce", "all_gather"]
    assert default[1].reduce_op == "MAX" and default[0].reduce_op == "SUM"
    assert default[3].root == 0 and default[4].root == 0
    assert (default[0].numel, default[0].dtype) == (4, "float32")
    assert {event.outer for event in default if event.outer} == {"all_gather_object", "broadcast_object_list"}
    assert all(event.site and event.site.file.endswith("every_operation.py") for event in default)
    sends = [(e.kind, e.peer, e.nth) for e in ring if e.kind == "send"]
    receives = [(e.kind, e.peer, e.nth) for e in second.ring(second.groups()) if e.kind == "recv"]
    assert sends == [("send", 1, 1), ("send", 1, 2)] and receives == [("recv", 0, 1), ("recv", 0, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("monitored", [False, True])
def test_sends_and_receives_do_not_shift_the_numbers_of_collectives(runner: Runner, monitored: bool) -> None:
    recording = runner.job(3, PROGRAMS / "collective_numbers.py", ["monitored"] if monitored else [])
    assert recording.done.returncode == 0, recording.done.stderr[-3000:]
    expected = [1, 2, 3, 4, 5, 6]
    if (
        not monitored
    ):  # a monitored barrier shifts the flight recorder's own numbers, rank 0's otherwise than the rest's
        assert json.loads(recording.done.stdout.splitlines()[-1]) == expected
    for record in recording.records():
        ring = record.ring(record.groups())
        assert [event.seq for event in ring if event.op in ("all_reduce", "barrier")] == expected
        assert record.groups()[0].enqueued == expected[-1]


@pytest.mark.slow
def test_output_and_exit_code_are_those_of_an_unrecorded_job(runner: Runner) -> None:
    script = PROGRAMS / "every_operation.py"
    recorded = runner.python(str(script), "3")
    plain_environment = {k: v for k, v in runner.environment().items() if not k.startswith(("RANKCALL", "PYTHONPATH"))}
    plain = subprocess.run(
        [sys.executable, str(script), "3"],
        env={**plain_environment, "RANK": "0", "WORLD_SIZE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (recorded.done.returncode, plain.returncode) == (3, 3)
    assert recorded.done.stdout == plain.stdout
    assert recorded.done.stderr == plain.stderr


def test_a_forked_child_does_not_write_into_its_parents_record(runner: Runner) -> None:
    code = """
        import os, sys
        from rankcall.record.recorder import recorder
        child = os.fork()
        if child == 0:
            assert recorder.writer is None and not recorder.on
            sys.exit(9)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    recording = runner.python("-c", textwrap.dedent(code))
    assert recording.done.stdout == "9\n", recording.done.stderr
    (record,) = recording.records()
    note = record.exit_note()
    assert note is not None and note.kind == "finish"


@pytest.mark.slow
def test_ranks_that_were_forked_have_records_of_their_own(runner: Runner) -> None:
    recording = runner.python(str(PROGRAMS / "forked_ranks.py"))
    assert recording.done.returncode == 0, recording.done.stderr[-3000:]
    ranks = [record for record in recording.records() if record.identity()["initialized"] != "no"]
    assert [record.identity()["claimed_rank"] for record in ranks] == [0, 1]
    for record in ranks:
        groups = record.groups()
        assert [group.key for group in groups] == ["0-1#0"]
        events = [event for event in record.ring(groups) if event.kind == "collective"]
        assert [(event.op, event.dtype, event.reduce_op, event.seq) for event in events] == [
            ("all_reduce", "float32", "SUM", 1),
            ("all_reduce", "int64", "MAX", 2),
            ("barrier", None, None, 3),
        ]
        assert record.counters().collectives == 3
        assert record.counter("faults") == 0


def test_a_thread_that_calls_exit_does_not_end_the_rank(runner: Runner) -> None:
    code = "import sys, threading; t = threading.Thread(target=sys.exit, args=(4,)); t.start(); t.join()"
    (record,) = runner.python("-c", code).records()
    note = record.exit_note()
    assert note is not None and note.kind == "finish"


def test_helpers_that_inherit_the_rank_variable_are_no_ranks(runner: Runner) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"
    recording = runner.python("-c", code)
    assert len(recording.records()) == 1


def test_a_process_without_a_rank_variable_is_none(runner: Runner) -> None:
    recording = runner.python("-c", "pass", rank=None)
    assert recording.records() == []


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_an_isolated_python_runs_unrecorded(runner: Runner, flag: str) -> None:
    recording = runner.python(flag, "-c", "print('ran')")
    assert recording.done.stdout == "ran\n"
    assert recording.records() == []


def test_an_uncaught_exception_is_noted_with_its_frames_and_causes(runner: Runner, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "def inner():\n    raise KeyError('k')\n"
        "try:\n    inner()\nexcept KeyError as e:\n    raise ValueError('v') from e\n"
    )
    recording = runner.python(str(script))
    assert recording.done.returncode == 1
    (record,) = recording.records()
    note = record.exit_note()
    assert note is not None and note.exception is not None
    assert (note.kind, note.exception.type, note.exception.message) == ("exception", "ValueError", "v")
    assert [(frame.line, frame.function) for frame in note.exception.frames] == [(6, "<module>")]
    assert note.exception.chain == ("KeyError: 'k'",)


def test_an_exception_is_noted_though_the_program_replaced_the_hook(runner: Runner) -> None:
    recording = runner.python("-c", "import sys; sys.excepthook = lambda *a: None\nraise ValueError('quiet')")
    (record,) = recording.records()
    note = record.exit_note()
    assert note is not None and note.exception is not None and note.exception.message == "quiet"


def test_an_exit_inside_an_except_keeps_the_exception(runner: Runner) -> None:
    code = "import sys\ntry:\n    try: 1/0\n    except ZeroDivisionError: sys.exit(1)\nfinally: sys.exit(1)"
    (record,) = runner.python("-c", code).records()
    note = record.exit_note()
    assert note is not None and note.exception is not None
    assert (note.kind, note.code, note.exception.type) == ("exit", 1, "ZeroDivisionError")


def test_the_users_own_sitecustomize_still_runs(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = 'yes'\n")
    recording = runner.python(
        "-c",
        "import sys; print(sys.mine, [p for p in sys.path if 'inject' in p])",
        PYTHONPATH=f"{INJECT}{os.pathsep}{tmp_path}",
    )
    assert recording.done.stdout == "yes []\n", recording.done.stderr


def test_a_full_memory_file_system_does_not_kill_the_rank(runner: Runner, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = (
        os.geteuid() == 0
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True, check=False
        ).returncode
        == 0
    )
    if not mounted:
        pytest.skip("mounting a small tmpfs is not allowed here")
    try:
        recording = runner.python("-c", "print('ran')", RANKCALL_RECORDS=str(small))
        assert (recording.done.stdout, recording.done.returncode) == ("ran\n", 0)
        assert list(small.glob("*.rec")) == []
    finally:
        subprocess.run(["umount", str(small)], check=False)


def test_a_record_folder_that_vanished_does_not_matter(runner: Runner) -> None:
    shutil.rmtree(runner.folder)
    recording = runner.python("-c", "print('ran')")
    assert (recording.done.stdout, recording.done.returncode) == ("ran\n", 0)


def test_stacks_come_while_the_main_thread_sleeps(runner: Runner) -> None:
    from rankcall.watch.asking import ask_stacks
    from rankcall.watch.processes import read_stat

    process = subprocess.Popen(
        [sys.executable, "-c", "import time\ndef napping():\n    time.sleep(60)\nnapping()"],
        env=runner.environment(RANK="0"),
    )
    try:
        for _ in range(200):
            if list(runner.folder.glob("*.rec")):
                break
            time.sleep(0.02)
        time.sleep(0.2)
        stat = read_stat(process.pid)
        assert stat is not None
        stacks = ask_stacks(runner.folder, [(process.pid, stat.start)], 2.0)
        main = stacks[process.pid, stat.start][0]
        assert [frame.function for frame in main] == ["napping", "<module>"]
        assert ask_stacks(runner.folder, [(process.pid, stat.start + 1)], 0.1) == {}, "another process of that pid"
    finally:
        process.kill()
        process.wait()


def test_a_process_without_our_handler_is_never_signalled(runner: Runner) -> None:
    from rankcall.watch.processes import handles_stack_signal

    process = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(60)"])
    try:
        assert not handles_stack_signal(process.pid)
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_program_that_joins_all_threads_and_closes_all_files_ends_as_ever(runner: Runner, tmp_path: Path) -> None:
    recording = runner.python(str(PROGRAMS / "tidy_program.py"), str(tmp_path))
    assert recording.done.returncode == 0, recording.done.stderr[-3000:]
    assert recording.done.stdout == "joined 0, freed True\n"
    assert {path.read_text() for path in tmp_path.glob("data-*")} == {"mine"}


def test_the_layout_has_no_overlaps() -> None:
    parts = [(0, layout.HEADER_SIZE)]
    parts += [(layout.BLOB_AT[name], layout.BLOB_AT[name] + 64 + 2 * half) for name, half in layout.BLOBS.items()]
    parts += [(layout.SLOTS_AT, layout.SLOTS_AT + layout.SLOTS * layout.SLOT_SIZE)]
    parts += [
        (layout.RING_AT, layout.RING_AT + layout.RING_EVENTS * layout.EVENT_SIZE),
        (layout.STRINGS_AT, layout.SIZE),
    ]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(parts))
    assert all(start % 8 == 0 for start, _ in parts)


@pytest.mark.slow
def test_compiled_ddp_breaks_no_more_graphs_than_without_recording(runner: Runner) -> None:
    recorded = runner.job(2, PROGRAMS / "compiled.py", timeout=120)
    environment = {k: v for k, v in runner.environment().items() if not k.startswith(("RANKCALL", "PYTHONPATH"))}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(PROGRAMS / "compiled.py")]
    plain = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert plain.returncode == 0, plain.stderr[-2000:]
    assert "graph_break" in plain.stdout
    assert recorded.done.stdout == plain.stdout
    assert recorded.records()[0].counter("faults") == 0
