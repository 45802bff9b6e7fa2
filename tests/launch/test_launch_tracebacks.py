"""A failing job prints one traceback once; a job that goes on prints everything, byte for byte."""

from __future__ import annotations

from rankcall.launch.tracebacks import HOLD, PAUSE, Shown, StderrFilter

ERROR = b'Traceback (most recent call last):\n  File "train.py", line %d, in <module>\n    main()\nValueError: %s\n'


def shown(ranks: int = 4) -> Shown:
    return Shown(ranks=ranks, text_of=lambda rank: f"logs/rank{rank}.stderr")


def prefixed(text: bytes, rank: int) -> bytes:
    return b"".join(b"[rank%d]: " % rank + line for line in text.splitlines(keepends=True))


def uncaught(filter_: StderrFilter, rank: int, text: bytes, now: float = 0.0) -> bytes:
    return filter_.feed(prefixed(text, rank), now) + filter_.tick(now + PAUSE) + filter_.ended(True, now + 1)


def test_ordinary_lines_pass_unchanged() -> None:
    filter_ = StderrFilter(0, shown())
    assert filter_.feed(b"step 1\nTraceback is a word\n\xff\xfe\n", 0.0) == b"step 1\nTraceback is a word\n\xff\xfe\n"
    assert filter_.idle


def test_the_first_traceback_is_printed_in_full_and_the_same_of_another_rank_in_one_line() -> None:
    common = shown()
    first = uncaught(StderrFilter(1, common), 1, ERROR % (5, b"bad value 1"))
    assert first == prefixed(ERROR % (5, b"bad value 1"), 1)
    second = uncaught(StderrFilter(3, common), 3, ERROR % (5, b"bad value 3 at 0x7f00"))
    assert second != b""  # the texts differ by more than numbers
    third = uncaught(StderrFilter(2, common), 2, ERROR % (5, b"bad value 17"))
    assert third == b"rank 2: same error as rank 1 (full text in logs/rank2.stderr)\n"


def test_the_same_error_at_another_line_is_another_error() -> None:
    common = shown()
    uncaught(StderrFilter(0, common), 0, ERROR % (5, b"bad"))
    other = prefixed(ERROR % (6, b"bad"), 1)
    assert uncaught(StderrFilter(1, common), 1, ERROR % (6, b"bad")) == other


def test_an_echo_of_a_rank_that_left_is_one_line_even_if_it_comes_first() -> None:
    text = ERROR % (9, b"[../gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:4711")
    line = uncaught(StderrFilter(2, shown()), 2, text)
    assert line.startswith(b"rank 2: ValueError: [../gloo/pair.cc:553] Connection closed by peer")
    assert line.endswith(b"(another rank left first; full text in logs/rank2.stderr)\n")
    assert line.count(b"\n") == 1


def test_a_broken_pipe_of_the_program_itself_is_no_echo() -> None:
    text = ERROR.replace(b"ValueError", b"BrokenPipeError") % (9, b"[Errno 32] Broken pipe")
    assert uncaught(StderrFilter(2, shown()), 2, text) == prefixed(text, 2)


def test_an_unprefixed_traceback_counts_once_its_rank_has_ended() -> None:
    common = shown()
    first, second = StderrFilter(0, common), StderrFilter(1, common)
    assert first.feed(ERROR % (5, b"bad"), 0.0) == b""
    assert first.tick(PAUSE) == ERROR % (5, b"bad")
    assert second.feed(ERROR % (5, b"bad"), 0.0) == b""
    assert second.tick(PAUSE) == b""  # it may still be handled
    assert second.ended(True, 1.0) == b"rank 1: same error as rank 0 (full text in logs/rank1.stderr)\n"


def test_a_handled_exception_that_every_rank_logs_is_printed_by_every_rank() -> None:
    common = shown()
    first, second = StderrFilter(0, common), StderrFilter(1, common)
    text = ERROR % (5, b"bad") + b"going on\n"
    out = first.feed(text, 0.0) + first.tick(PAUSE)
    assert out == text
    out = second.feed(text, 0.0)
    assert second.deadline is not None
    out += second.tick(PAUSE) + second.feed(b"more\n", 0.5) + second.tick(HOLD + 0.1)
    assert out == text + b"more\n"
    assert second.idle


def test_a_rank_that_repeats_its_own_handled_exception_is_never_held() -> None:
    filter_ = StderrFilter(0, shown())
    for start in range(3):
        now = float(start)
        assert filter_.feed(ERROR % (5, b"bad"), now) + filter_.tick(now + PAUSE) == ERROR % (5, b"bad")


def test_a_rank_that_ends_well_after_a_handled_exception_loses_nothing() -> None:
    common = shown()
    first, second = StderrFilter(0, common), StderrFilter(1, common)
    first.feed(ERROR % (5, b"bad"), 0.0)
    first.ended(False, 0.1)
    assert second.feed(ERROR % (5, b"bad"), 0.0) + second.ended(False, 0.1) == ERROR % (5, b"bad")


def test_a_chained_traceback_is_one_traceback() -> None:
    chain = (
        ERROR % (5, b"inner")
        + b"\nDuring handling of the above exception, another exception occurred:\n\n"
        + (ERROR % (7, b"outer"))
    )
    common = shown()
    first, second = StderrFilter(0, common), StderrFilter(1, common)
    assert first.feed(chain, 0.0) + first.ended(True, 1.0) == chain
    assert second.feed(chain, 0.0) + second.ended(True, 1.0) == (
        b"rank 1: same error as rank 0 (full text in logs/rank1.stderr)\n"
    )


def test_a_traceback_that_was_cut_off_by_the_end_of_its_rank_is_known_by_its_beginning() -> None:
    common = shown()
    first, second = StderrFilter(0, common), StderrFilter(1, common)
    first.feed(ERROR % (5, b"bad"), 0.0)
    first.ended(True, 1.0)
    out = second.feed(b"Traceback (most recent call last):\n", 0.0) + second.ended(True, 1.0)
    assert out == b"rank 1: same error as rank 0 (full text in logs/rank1.stderr)\n"


def test_lines_after_a_repeated_traceback_are_kept() -> None:
    common = shown()
    first, second = StderrFilter(0, common), StderrFilter(1, common)
    first.feed(ERROR % (5, b"bad"), 0.0)
    first.ended(True, 1.0)
    out = second.feed(ERROR % (5, b"bad") + b"last word\n", 0.0) + second.ended(True, 1.0)
    assert out == b"rank 1: same error as rank 0 (full text in logs/rank1.stderr)\nlast word\n"


def test_one_rank_alone_is_never_touched() -> None:
    filter_ = StderrFilter(0, shown(ranks=1))
    assert filter_.feed(ERROR % (5, b"Connection closed by peer"), 0.0) == ERROR % (5, b"Connection closed by peer")


def test_native_lines_of_a_failure_are_printed_by_one_rank() -> None:
    common = shown()
    common.failing = True
    lines = b"[E1129 10:00:00.1 ProcessGroup.cpp:1] failed\nframe #1: f() + 0x10 (0x7f in lib.so)\nown line\n"
    first, second = StderrFilter(0, common), StderrFilter(1, common)
    assert first.feed(lines, 0.0) == lines
    assert second.feed(lines.replace(b"0x7f", b"0x8e"), 0.0) == b"own line\n"
    assert second.ended(True, 1.0) == b"rank 1: 2 more lines like rank 0's (full text in logs/rank1.stderr)\n"


def test_ctrl_c_in_every_rank_is_one_line_each() -> None:
    common = shown()
    common.failing = common.interrupted = True
    text = ERROR.replace(b"ValueError: %s", b"KeyboardInterrupt") % 5
    filter_ = StderrFilter(0, common)
    out = filter_.feed(text, 0.0) + filter_.ended(True, 1.0)
    assert out == b"rank 0: KeyboardInterrupt (full text in logs/rank0.stderr)\n"


def test_an_endless_traceback_is_shown_as_it_is() -> None:
    filter_ = StderrFilter(0, shown())
    data = b"Traceback (most recent call last):\n" + b'  File "x", line 1, in f\n' * 20_000
    out = filter_.feed(data, 0.0)
    assert data.startswith(out) and len(out) > 200_000
    assert out + filter_.give_up() + filter_.finish(1.0) == data
