"""Lines and logs: what the console and HOST-rankN.log make of a stream."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rankcall.launch.console import MOST_OF_A_LINE, Lines, TimedLog
from rankcall.launch.streams import MOST_IN_MEMORY, Capture, Stream


@given(st.lists(st.binary(max_size=40) | st.just(b"\n") | st.just(b"x\ny\n"), max_size=30), st.data())
def test_no_byte_is_lost_added_or_moved_between_pieces(pieces: list[bytes], data: st.DataObject) -> None:
    lines, out = Lines(), b""
    for piece in pieces:
        rest, whole = lines.feed(piece, 0.0)
        assert not rest or rest.endswith(b"\n")
        assert not whole or whole.endswith(b"\n")
        out += rest + whole
        if data.draw(st.booleans()):
            out += lines.take_started()
    assert out + lines.take_started() == b"".join(pieces)


def test_the_rest_of_a_line_that_was_begun_is_told_from_whole_lines() -> None:
    lines = Lines()
    assert lines.feed(b"10%", 0.0) == (b"", b"")
    assert lines.take_started() == b"10%"
    assert lines.feed(b" done\nnext\n", 0.0) == (b" done\n", b"next\n")


def test_the_log_gives_each_line_its_time_and_stream(tmp_path: Path) -> None:
    log = TimedLog(tmp_path / "host-rank0.log")
    log.add("stdout", b"one\ntw", 0.0)
    log.add("stderr", b"oops\n", 1.5)
    log.add("stdout", b"o\nrest", 2.0)
    log.close(3.0)
    text = (tmp_path / "host-rank0.log").read_text()
    head, *lines = text.splitlines()
    assert "when rankcall read" in head
    assert lines == [
        "1970-01-01 00:00:00.000 out | one",
        "1970-01-01 00:00:01.500 err | oops",
        "1970-01-01 00:00:02.000 out | two",
        "1970-01-01 00:00:03.000 out | rest",
    ]


def test_the_log_makes_lines_of_a_progress_bar_and_cuts_endless_ones(tmp_path: Path) -> None:
    log = TimedLog(tmp_path / "log")
    log.add("stderr", b"\r10%\r20%\r\n", 0.0)
    log.add("stdout", b"x" * (MOST_OF_A_LINE + 10), 0.0)
    log.close(0.0)
    lines = (tmp_path / "log").read_text().splitlines()[1:]
    assert [line.split("| ")[1][:5] for line in lines] == ["", "10%", "20%", "xxxxx"]


def test_the_log_of_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    log = TimedLog(tmp_path / "nowhere" / "log")
    log.add("stdout", b"one\n", 0.0)
    log.close(0.0)


def test_a_stream_is_kept_in_its_file_and_can_be_taken_in_order(tmp_path: Path) -> None:
    stream = Stream("stdout", tmp_path / "raw", to_console=True)
    for piece in (b"a" * 1000, b"b" * 70_000, b"c"):
        os.write(stream.writer, piece)
        while stream.receive():
            pass
    expected = b"a" * 1000 + b"b" * 70_000 + b"c"
    assert (tmp_path / "raw").read_bytes() == expected
    assert b"".join(iter(stream.take, b"")) == expected
    stream.close_writer()
    assert stream.receive() == 0 and stream.closed
    stream.release()


def test_a_stream_whose_file_cannot_be_written_still_reaches_the_console(tmp_path: Path) -> None:
    stream = Stream("stdout", tmp_path / "nowhere" / "raw", to_console=True)
    os.write(stream.writer, b"text\n")
    stream.receive()
    assert stream.take() == b"text\n" and stream.unsaved == 5
    stream.release()


def test_memory_is_bounded_when_nobody_takes(tmp_path: Path) -> None:
    stream = Stream("stdout", tmp_path / "nowhere" / "raw", to_console=True)
    taken = 0
    for _ in range(100):
        os.write(stream.writer, b"x" * 60_000)
        if not stream.crowded:
            taken += stream.receive()
            continue
        break
    assert stream.crowded and taken < MOST_IN_MEMORY + 70_000
    stream.release()


def test_text_that_nobody_shows_and_no_file_takes_is_dropped(tmp_path: Path) -> None:
    stream = Stream("stdout", tmp_path / "nowhere" / "raw", to_console=False)
    for _ in range(50):
        os.write(stream.writer, b"x" * 60_000)
        stream.receive()
    assert not stream.crowded and not stream.has_text and stream.unsaved == 50 * 60_000
    stream.release()


def test_a_gap_is_marked_in_the_file_when_it_can_be_written_again(tmp_path: Path) -> None:
    stream = Stream("stdout", tmp_path / "later" / "raw", to_console=True)
    os.write(stream.writer, b"lost\n")
    stream.receive()
    (tmp_path / "later").mkdir()
    stream._retry_at = 1e-9  # the time to try again has come
    os.write(stream.writer, b"kept\n")
    stream.receive()
    text = (tmp_path / "later" / "raw").read_text()
    assert re.fullmatch(r"\n\[rankcall: 5 bytes could not be saved here\]\nkept\n", text)
    assert stream.take() == b"lost\n" and stream.take() == b"kept\n"
    stream.release()


def test_capture_takes_everything_before_it_stops(tmp_path: Path) -> None:
    capture = Capture(lambda: None)
    streams = [Stream("stdout", tmp_path / f"raw{number}", to_console=True) for number in range(8)]
    for stream in streams:
        capture.add(stream)
    for _ in range(50):
        for number, stream in enumerate(streams):
            os.write(stream.writer, b"%d" % number * 5000)
    capture.stop()
    assert [stream.raw.stat().st_size for stream in streams] == [250_000] * 8
    for stream in streams:
        stream.release()
