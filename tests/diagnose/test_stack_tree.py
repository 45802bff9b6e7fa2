"""Stacks of all ranks merged: equal ones are one class, the odd ones are marked, at any size."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankcall.diagnose.readers.stack_sample import native_frame
from rankcall.diagnose.stack_tree import FEW_CLASSES, MOST_CLASSES, RankStack, merge_stacks, rank_stacks
from rankcall.snapshot import Frame, Process, Snapshot, Thread, Wait

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
SCRIPT = "/home/u/train.py"


def in_loop(line: int = 57) -> tuple[Frame, ...]:
    return (Frame(SCRIPT, line, "train"), Frame(SCRIPT, 80, "main"), Frame(SCRIPT, 84, "<module>"))


def reducing(line: int = 57) -> tuple[Frame, ...]:
    return (
        Frame(f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce"),
        Frame(f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper"),
        *in_loop(line),
    )


def loading() -> tuple[Frame, ...]:
    return (
        Frame("/usr/lib/python3.11/selectors.py", 415, "select"),
        Frame(f"{TORCH}/utils/data/dataloader.py", 725, "__next__"),
        *in_loop(54),
    )


def merged(stacks: list[RankStack], **options: Any) -> dict[str, Any]:
    found = merge_stacks(stacks, **options)
    assert found is not None
    assert json.loads(json.dumps(found)) == found
    return found


def classes(found: dict[str, Any]) -> list[tuple[str, int, bool, str, str]]:
    return [(one["ranks"], one["count"], one["odd"], one["wait"], one["phase"]) for one in found["classes"]]


def calls(found: dict[str, Any]) -> list[tuple[int, str, int, str]]:
    return [(row["depth"], row["function"], row["line"], row["ranks"]) for row in found["tree"]]


def test_one_rank_of_four_thousand_stands_out() -> None:
    found = merged([RankStack(rank, loading() if rank == 1337 else reducing()) for rank in range(4096)])
    assert (found["ranks"], found["level"]) == (4096, "line")
    assert classes(found) == [
        ("0-1336, 1338-4095", 4095, False, "all_reduce", "collective"),
        ("1337", 1, True, "", "data"),
    ]
    assert calls(found) == [
        (0, "<module>", 84, "0-4095"),
        (1, "main", 80, "0-4095"),
        (2, "train", 57, "0-1336, 1338-4095"),
        (3, "wrapper", 83, "0-1336, 1338-4095"),
        (4, "all_reduce", 3252, "0-1336, 1338-4095"),
        (2, "train", 54, "1337"),
        (3, "__next__", 725, "1337"),
        (4, "select", 415, "1337"),
    ]
    assert [row["odd"] for row in found["tree"]] == [False] * 5 + [True] * 3
    assert [row.get("ends") for row in found["tree"]] == [None] * 4 + [[0]] + [None] * 2 + [[1]]
    assert [frame["user"] for frame in found["classes"][1]["frames"]] == [False, False, True, True, True]
    assert found["classes"][0]["frames"][0]["function"] == "all_reduce"


def test_the_line_tells_ranks_apart_while_there_are_few_classes() -> None:
    stacks = [RankStack(rank, reducing(57 + (rank == 0))) for rank in range(8)]
    assert [one[:3] for one in classes(merged(stacks))] == [("1-7", 7, False), ("0", 1, True)]
    together = merged(stacks, level="function")
    assert [one[:3] for one in classes(together)] == [("0-7", 8, False)]
    train = next(row for row in together["tree"] if row["function"] == "train")
    assert train["lines"] == [57, 58]


def test_many_lines_of_one_function_are_one_class() -> None:
    stacks = [RankStack(rank, in_loop(100 + rank)) for rank in range(63)] + [RankStack(63, loading())]
    found = merged(stacks)
    assert found["level"] == "function"
    assert [one[:3] for one in classes(found)] == [("0-62", 63, False), ("63", 1, True)]
    assert len(found["tree"][2]["lines"]) == 8


def test_where_even_functions_differ_the_users_own_decide_and_what_they_do() -> None:
    def deep(rank: int) -> tuple[Frame, ...]:
        module = Frame(f"{TORCH}/nn/modules/module.py", 9, "_call_impl")
        return (Frame(f"{TORCH}/nn/functional.py", 3, f"f{rank}"), module, *in_loop(rank))

    stacks = [RankStack(rank, deep(rank)) for rank in range(30)] + [RankStack(30, reducing()), RankStack(31, loading())]
    found = merged(stacks)
    assert found["level"] == "user"
    assert classes(found) == [
        ("0-29", 30, False, "", "forward"),
        ("30", 1, True, "all_reduce", "collective"),
        ("31", 1, True, "", "data"),
    ]
    # They part by what they do, at one and the same line.
    assert [row["function"] for row in found["tree"]] == ["<module>", "main", "train"]
    assert found["tree"][2]["ends"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("sizes", "odd"),
    [
        ([1, 1], []), ([2, 2], []), ([3, 1], [1]), ([5, 3], []), ([60, 4], [1]), ([50, 14], []), ([61, 2, 1], [1, 2]),
        ([4, 4, 4, 4], []), ([6, 1, 1], [1, 2]), ([3, 2, 1], []), ([7], []),
    ],
)  # fmt: skip
def test_who_is_odd(sizes: list[int], odd: list[int]) -> None:
    stacks, rank = [], 0
    for kind, size in enumerate(sizes):
        stacks += [RankStack(rank + at, (Frame(SCRIPT, 1, f"f{kind}"),)) for at in range(size)]
        rank += size
    assert [at for at, one in enumerate(merged(stacks)["classes"]) if one["odd"]] == odd


def test_lines_that_differ_hide_no_odd_rank() -> None:
    """Three ranks in one loop at three lines, and one in the loader: no class of lines is dominant."""
    stacks = [RankStack(rank, reducing(57 + rank)) for rank in range(3)] + [RankStack(3, loading())]
    assert [(one[0], one[2]) for one in classes(merged(stacks))] == [
        ("0", False), ("1", False), ("2", False), ("3", True),
    ]  # fmt: skip


def test_dumps_of_different_tools_are_compared() -> None:
    short = tuple(
        Frame(frame.file.replace("/opt/venv/lib/python3.11/", "…/").replace("/home/u/", ""), frame.line,
              frame.function.replace("wrapper", "_exception_logger.<locals>.wrapper"))
        for frame in reducing()
    )  # fmt: skip
    other_host = tuple(
        Frame(frame.file.replace("/opt/venv", "/data/env"), frame.line, frame.function) for frame in reducing()
    )
    native = (native_frame("poll", "libc.so.6"), native_frame("c10d::Work::wait(long)", "libtorch_cpu.so"), *reducing())
    found = merged([RankStack(at, frames) for at, frames in enumerate((reducing(), short, other_host, native))])
    assert [one[:2] for one in classes(found)] == [("0-3", 4)]
    assert {row["file"] for row in found["tree"] if row["user"]} == {SCRIPT}


def test_native_frames_tell_ranks_apart_where_all_have_them() -> None:
    def native(*names: str) -> tuple[Frame, ...]:
        return (*(native_frame(name, "lib.so") for name in names), *in_loop())

    stacks = [RankStack(rank, native("pthread_cond_wait", "c10d::Work::wait(x)")) for rank in range(4)]
    stacks.append(RankStack(4, native("read", "load_shard(char const*)")))
    stacks.append(RankStack(5, (native_frame("poll", "libc.so.6"),)))
    found = merged(stacks)
    assert [one[0] for one in classes(found)] == ["0-3", "4", "5"]
    functions = [row["function"] for row in found["tree"]]
    assert "pthread_cond_wait" not in functions  # how it sleeps, not in what
    assert "c10d::Work::wait" in functions
    assert "poll" in functions  # all that is known of rank 5


def test_rankcalls_own_hooks_are_left_out() -> None:
    hook = Frame("/opt/venv/lib/python3.11/site-packages/rankcall/record/collectives.py", 3, "guarded")
    hooked = (reducing()[0], hook, *reducing()[1:])
    assert len(merged([RankStack(0, reducing()), RankStack(1, hooked)])["classes"]) == 1


def test_other_threads_are_classes_of_their_own() -> None:
    saving = (
        Frame(f"{TORCH}/distributed/checkpoint/filesystem.py", 3, "write_data"),
        Frame(SCRIPT, 9, "save_in_background"),
    )
    stacks = [RankStack(rank, reducing()) for rank in range(4)]
    stacks += [RankStack(rank, saving, thread="saver") for rank in range(3)] + [RankStack(3, loading(), thread="saver")]
    found = merged(stacks)
    assert [(one["ranks"], one["thread"], one["odd"]) for one in found["classes"]] == [
        ("0-3", "", False), ("0-2", "saver", False), ("3", "saver", True),
    ]  # fmt: skip
    assert [row["thread"] for row in found["tree"] if row.get("thread")] == ["saver", "saver"]


def test_what_the_snapshot_knows_counts_more_than_the_stack() -> None:
    wait = Wait(kind="collective", op="all_gather", outer="all_gather_object")
    threads = (
        Thread(tid=1, main=True, phase="evaluate", wait=wait, stack=in_loop()),
        Thread(tid=2, name="saver", wait=wait, stack=reducing()),
        Thread(tid=3, name="queue", stack=loading()),
    )
    processes = [Process(host="a", pid=rank, claimed_rank=rank, threads=threads) for rank in range(2)]
    processes.append(Process(host="a", pid=9, threads=threads))  # no rank
    processes.append(Process(host="a", pid=10, claimed_rank=3))  # no stack
    stacks = rank_stacks(Snapshot(taken_at=0.0, processes=tuple(processes)))
    assert [(stack.rank, stack.thread) for stack in stacks] == [(0, ""), (0, "saver"), (1, ""), (1, "saver")]
    assert classes(merged(stacks))[0] == ("0-1", 2, False, "all_gather_object", "evaluate")


def test_nothing_to_merge() -> None:
    assert merge_stacks([]) is None
    assert merge_stacks([RankStack(0, ())]) is None


def test_files_that_came_with_the_snapshot_are_the_users() -> None:
    installed = f"{TORCH}/../mypackage/train.py"
    found = merged([RankStack(0, (Frame(installed, 3, "train"),))], sources={installed: "x"})
    assert found["tree"][0]["user"]


def test_stacks_without_end_are_bounded() -> None:
    stacks = [RankStack(rank, tuple(Frame(SCRIPT, n, f"f{rank}") for n in range(1_000))) for rank in range(400)]
    found = merged(stacks)
    assert len(found["classes"]) == MOST_CLASSES > FEW_CLASSES
    assert found["left_out"] == {"classes": 350, "ranks": 350}
    assert all(len(one["frames"]) <= 200 for one in found["classes"])
    assert len(found["tree"]) <= MOST_CLASSES * 200
    every_second = merged([RankStack(rank, reducing()) for rank in range(0, 10_000, 2)])
    assert every_second["classes"][0]["ranks"].endswith(" and 4936 more")


def test_the_odd_ones_are_kept_when_classes_are_left_out() -> None:
    stacks = [RankStack(rank, reducing()) for rank in range(1_000)]
    stacks += [RankStack(1_000 + rank, (Frame(SCRIPT, 1, f"f{rank}"),)) for rank in range(400)]
    found = merged(stacks)
    assert found["classes"][0]["count"] == 1_000
    assert all(one["odd"] for one in found["classes"][1:])


FRAMES = st.builds(
    Frame, st.sampled_from([SCRIPT, "train.py", f"{TORCH}/nn/functional.py", "<native lib.so>", ""]), st.integers(0, 3),
    st.sampled_from(["f", "a.<locals>.f", "poll", "", "<module>"]),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.lists(FRAMES, max_size=6), st.sampled_from(["", "t"])), max_size=30))
def test_every_rank_is_counted_once_and_the_tree_agrees(made: list[tuple[int, list[Frame], str]]) -> None:
    stacks = [RankStack(rank, tuple(frames), thread) for rank, frames, thread in made]
    found = merge_stacks(stacks)
    usable = [stack for stack in stacks if stack.frames]
    if not usable:
        assert found is None
        return
    assert found is not None
    data: dict[str, Any] = found
    assert data["ranks"] == len({stack.rank for stack in usable})
    ends = [at for row in data["tree"] for at in row.get("ends", ())]
    assert sorted(ends) == list(range(len(data["classes"])))
    above: list[int] = []
    for row in data["tree"]:
        del above[row["depth"] :]
        assert len(above) == row["depth"]
        assert not above or row["count"] <= above[-1]
        above.append(row["count"])
