"""What the user's source says about a line; any text is survived."""

from __future__ import annotations

import textwrap

import pytest

from rankcall.diagnose.source import Program
from rankcall.snapshot import Frame

FILE = "/home/me/train.py"


def program(text: str) -> tuple[Program, dict[str, Frame]]:
    source = textwrap.dedent(text).strip("\n")
    marks = {}
    for number, line in enumerate(source.split("\n"), 1):
        if "# <- " in line:
            marks[line.rpartition("# <- ")[2].strip()] = Frame(FILE, number)
    return Program({FILE: source}), marks


def test_loops_and_conditions_around_a_line_innermost_first() -> None:
    found, at = program(
        """
        def main():
            for epoch in range(3):  # <- outer
                if ready:
                    while not done:  # <- inner
                        step()  # <- step
        """
    )
    spot = found.spot(at["step"])
    assert [loop.line for loop in spot.loops] == [at["inner"].line, at["outer"].line]
    assert [guard.text for guard in spot.guards] == ["ready"]
    assert spot.function == "main"


@pytest.mark.parametrize(
    "condition",
    [
        "rank == 0",
        "dist.get_rank() == 0",
        "self.rank == 0",
        "args.local_rank in (-1, 0)",
        "is_main_process()",
        "is_main",
        "accelerator.is_main_process",
        "not main_process",
        "int(os.environ['RANK']) == 0",
        "os.environ.get('LOCAL_RANK', '0') == '0'",
        "trainer.is_global_zero_rank",
        "step % 10 == 0 and rank == 0",
    ],
)
def test_conditions_on_the_rank_are_known(condition: str) -> None:
    found, at = program(f"if {condition}:\n    barrier()  # <- call\n")
    guard = found.rank_guard(at["call"])
    assert guard is not None and guard.line == 1


@pytest.mark.parametrize(
    "condition", ["loss > 3", "ranked", "step % 10 == 0", "frank", "torch.isnan(loss)", "len(samples) == 0", "main()"]
)
def test_conditions_on_data_are_not(condition: str) -> None:
    found, at = program(f"if {condition}:\n    barrier()  # <- call\n")
    assert found.rank_guard(at["call"]) is None


def test_a_flag_made_from_the_rank_is_followed_but_not_a_model_made_with_it() -> None:
    found, at = program(
        """
        chief = dist.get_rank() == 0
        model = DDP(net, device_ids=[local_rank])
        loss = model(x)
        if chief:
            one()  # <- flag
        if loss > 2:
            two()  # <- loss
        """
    )
    assert found.rank_guard(at["flag"]) is not None
    assert found.rank_guard(at["loss"]) is None


def test_the_condition_around_every_call_of_a_function_guards_its_lines() -> None:
    found, at = program(
        """
        def evaluate(model):
            return model(x)  # <- forward
        if rank == 0:
            evaluate(model)
        """
    )
    guard = found.rank_guard(at["forward"])
    assert guard is not None and guard.text == "rank == 0"


def test_one_unguarded_call_takes_the_guard_away() -> None:
    found, at = program(
        """
        def evaluate(model):
            return model(x)  # <- forward
        if rank == 0:
            evaluate(model)
        evaluate(other)
        """
    )
    assert found.rank_guard(at["forward"]) is None


def test_the_two_sides_of_a_condition_exclude_one_another() -> None:
    found, at = program(
        """
        if a:
            one()  # <- one
        elif b:
            two()  # <- two
        else:
            three()  # <- three
        four()  # <- four
        """
    )
    assert found.exclusive(found.path(at["one"]), found.path(at["three"])) is not None
    assert found.exclusive(found.path(at["two"]), found.path(at["three"])) is not None
    assert found.exclusive(found.path(at["one"]), found.path(at["four"])) is None


def test_jumps_between_two_lines_with_their_conditions() -> None:
    found, at = program(
        """
        def main():
            for x in loader:  # <- loop
                loss = model(x)  # <- forward
                if bad(loss):  # <- guard
                    continue
                try:
                    check(loss)
                except ValueError:  # <- except
                    return
                loss.backward()  # <- backward
        """
    )
    jumps = found.jumps(FILE, at["forward"].line, at["backward"].line)
    kinds = [(jump.kind, jump.place.line) for jump in jumps]
    assert ("continue", at["guard"].line) in kinds
    assert ("return", at["except"].line) in kinds


def test_an_except_that_goes_on_is_found_through_the_call() -> None:
    found, at = program(
        """
        def step(x):
            return model(x)  # <- forward
        for x in loader:
            try:
                step(x)
            except RuntimeError:  # <- except
                log()
        """
    )
    assert [frame.line for frame in found.handlers_around(at["forward"])] == [at["except"].line]


def test_an_except_that_raises_again_swallows_nothing() -> None:
    found, at = program(
        """
        try:
            step(x)  # <- call
        except RuntimeError:
            log()
            raise
        """
    )
    assert found.handlers_around(at["call"]) == ()


def test_a_loop_over_a_shard_made_from_the_rank_is_known() -> None:
    found, at = program(
        """
        rank = dist.get_rank()
        files = sorted(glob("*"))[rank::world]
        loader = DataLoader(Texts(files))
        for x in loader:
            model(x)  # <- one
        for x in range(10):
            model(x)  # <- two
        """
    )
    assert found.spot(at["one"]).loops[0].by_rank
    assert not found.spot(at["two"]).loops[0].by_rank


def test_a_nested_function_stands_for_itself() -> None:
    found, at = program(
        """
        if rank == 0:
            def inner():
                call()  # <- call
        """
    )
    assert found.spot(at["call"]).guards == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "def broken(:\n",
        "\0",
        "x = (" * 5000,
        "if rank == 0:\n" + "".join(" " * i + "if x:\n" for i in range(1, 90)),
        "\ufeff# -*- coding: latin-1 -*-\nprint('é')",
        "\x0c\nif x:\n    pass\n",
        "a" * 3_000_000,
        "not python at all, 你好",
    ],
    ids=range(9),
)
def test_any_text_is_survived(text: str) -> None:
    found = Program({FILE: text})
    for line in (-1, 0, 1, 2, 10**9):
        frame = Frame(FILE, line, "f")
        found.spot(frame)
        found.rank_guard(frame)
        found.jumps(FILE, 0, 10**9)
        found.loops_around(frame)
        found.handlers_around(frame)


def test_recursive_functions_do_not_run_for_ever() -> None:
    found, at = program("def f():\n    f()  # <- call\n")
    assert found.rank_guard(at["call"]) is None
    assert found.loops_around(at["call"]) == ()


def test_a_file_that_was_not_kept_says_nothing() -> None:
    found = Program({})
    assert found.spot(Frame("/other.py", 3)).guards == ()
