"""Keeps a failing job's console readable: one traceback is shown once, however many ranks print it.

Pure: lines of the ranks' stderr and times go in, the bytes for the console come out. What is held back or left out
here is whole in the rank's own files. A job that goes on prints everything, byte for byte: only what a rank printed
as its last words may be shortened.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field

# An uncaught traceback is whole once its rank has printed nothing for this long (seconds).
PAUSE = 0.2
# A repeated traceback waits this long for the end of its rank; a rank that lives on had handled the exception.
HOLD = 2.0
# Memory held back for one rank at most; beyond it everything is shown as it is.
MOST_HELD = 256 * 1024
# What is remembered of the tracebacks shown.
MOST_OF_A_KEY = 4096
MOST_KEYS = 1000
# How much of an exception's own text stands in a one-line summary.
SUMMARY_WIDTH = 160

_START = re.compile(rb"^(?:\[rank\d+\]: ?)?(?:  \+ )?(?:Exception Group )?Traceback \(most recent call last\):\s*$")
_TRIGGER = b"Traceback (most recent call last):"
_RANK_PREFIX = re.compile(rb"^\[rank\d+\]: ?")
_CHAINED = (b"During handling of the above exception", b"The above exception was the direct cause")
_ADDRESS = re.compile(rb"0x[0-9a-fA-F]+")
_HOST_AND_PORT = re.compile(rb"\[[0-9A-Fa-f:.%]*\]:\d+")
_NUMBER = re.compile(rb"\d+")
# What torch's C++ side prints on a failure: log lines of a level, frames of a C++ stack, the terminate message.
_NATIVE = re.compile(
    rb"^(?:\[rank\d+\]:)?(?:\[[WEF]\d{3,4} |frame #\d+: |Exception raised from |terminate called |  what\(\): )"
)

# What ranks say when another one has left first. An echo explains nothing by itself.
_ECHOES = (
    b"Connection closed by peer",
    b"Connection reset by peer",
    b"Connection was likely closed. Did the remote server shutdown or crash?",
    b"failed to recv, got 0 bytes",
    b"Broken pipe",
    b"remote process exiting prematurely",
    b"connection closed by remote peer",
    b"NCCL communicator was aborted",
    b"has been aborted on rank",
)
# The same words from the operating system speak of any pipe of the program, a loader worker's say.
_NO_ECHO = (b"BrokenPipeError", b"ConnectionResetError", b"ConnectionAbortedError", b"OSError")


@dataclass
class Shown:
    """What the console has shown so far of all ranks: shared by their filters.

    `ranks` is how many print here. `failing` is set when one has failed or the job is being stopped. `text_of(rank)`
    names the file that holds a rank's full text.
    """

    ranks: int
    text_of: Callable[[int], str]
    failing: bool = False
    interrupted: bool = False
    tracebacks: dict[bytes, int] = field(default_factory=dict)
    lines: dict[bytes, int] = field(default_factory=dict)

    def first_rank(self, seen: dict[bytes, int], key: bytes, rank: int) -> int | None:
        """The other rank that has shown this already; None if `rank` is the first."""
        first = seen.setdefault(key, rank)
        if len(seen) > MOST_KEYS:  # a job that prints ever new errors: forget rather than grow
            seen.clear()
        return None if first == rank else first


class Block:
    """A traceback being read, with all that is chained to it."""

    def __init__(self, line: bytes, now: float) -> None:
        self.lines = [line]
        self.size = len(line)
        self.last = now
        # `[rank0]: ` is put there by torch's own sys.excepthook, so nobody handles this exception.
        self.uncaught = bool(_RANK_PREFIX.match(line))
        self.told = False  # the exception's own line was read; what follows is a chained one or no part of it

    def takes(self, line: bytes) -> bool:
        """Add the line if it belongs to the traceback, else answer False."""
        belongs = bool(_RANK_PREFIX.match(line)) if self.uncaught else self._belongs(line)
        if belongs:
            if self.uncaught and not _RANK_PREFIX.sub(b"", line).startswith((b" ", b"Traceback")):
                self.told = True
            self.lines.append(line)
            self.size += len(line)
        return belongs

    def _belongs(self, line: bytes) -> bool:
        text = line.rstrip()
        if not self.told:
            if text and not text.startswith((b" ", b"Traceback")):
                self.told = True
            return True
        if not text or text.startswith((b"  ", b"    ")) or text.startswith(_CHAINED):
            return True
        if _START.match(line) and any(before.startswith(_CHAINED) for before in self.lines[-3:]):
            self.told = False
            return True
        return False

    def key(self) -> bytes:
        """The same for two ranks that failed in the same way: numbers and addresses of messages left out."""
        text = b"\n".join(_normal(line) for line in self.lines if line.strip())
        if len(text) <= MOST_OF_A_KEY:
            return text
        return text[:MOST_OF_A_KEY] + hashlib.blake2b(text, digest_size=16).digest()

    def message(self) -> bytes:
        """The exception's own line: the last one that is no frame, of the last exception in the chain."""
        for line in reversed(self.lines):
            text = _RANK_PREFIX.sub(b"", line).rstrip()
            if text and not text.startswith((b" ", b"Traceback")) and not text.startswith(_CHAINED):
                return text
        return b"an error"

    def is_echo(self) -> bool:
        if self.message().startswith(_NO_ECHO):
            return False
        # Every line of the message counts: torch's errors run over several.
        texts = [_RANK_PREFIX.sub(b"", line) for line in self.lines]
        return any(echo in text for text in texts if not text.startswith(b"  ") for echo in _ECHOES)

    def is_interrupt(self) -> bool:
        return self.message().startswith(b"KeyboardInterrupt")


def _normal(line: bytes) -> bytes:
    """A line without what differs from rank to rank. Frames keep their line numbers: they are the difference."""
    text = _RANK_PREFIX.sub(b"", line).rstrip()
    if text.startswith(b"  "):
        return text
    text = _HOST_AND_PORT.sub(b"#", _ADDRESS.sub(b"#", text))
    return _NUMBER.sub(b"#", text)


class StderrFilter:
    """One rank's stderr on its way to the console.

    Feed whole lines; ask `tick` again at `deadline`; say `ended` when the process is gone, and `finish` at the end.
    Each of them returns the bytes to show now.
    """

    def __init__(self, rank: int, shown: Shown) -> None:
        self._rank = rank
        self._shown = shown
        self._block: Block | None = None
        self._held: list[Block | bytes] = []
        self._held_size = 0
        self._held_until = 0.0
        self._failed = False  # the process has ended, and badly: all it printed last are last words
        self._left_out = 0  # native lines that another rank has shown
        self._left_out_like = 0

    @property
    def idle(self) -> bool:
        """True if nothing is held back."""
        return self._block is None and not self._held

    @property
    def deadline(self) -> float | None:
        """When `tick` has something to do next, in the clock that `now` is given in."""
        if self._block is not None:
            return self._block.last + PAUSE
        return self._held_until if self._held else None

    def feed(self, data: bytes, now: float) -> bytes:
        """Take whole lines."""
        if self._shown.ranks < 2:
            return data
        if self.idle and not self._shown.failing and _TRIGGER not in data:
            return data
        return b"".join(self._line(line, now) for line in data.splitlines(keepends=True))

    def tick(self, now: float) -> bytes:
        """Decide what time has decided."""
        out = b""
        if self._block is not None and now >= self._block.last + PAUSE:
            out += self._complete(now)
        if self._held and now >= self._held_until:
            out += self._release(last_words=False)
        return out

    def ended(self, failed: bool, now: float) -> bytes:
        """The process is gone and all it wrote was fed."""
        self._failed = failed
        out = self._complete(now) if self._block is not None else b""
        if self._held:
            out += self._release(last_words=failed or self._shown.failing)
        return out + self._native_summary()

    def finish(self, now: float) -> bytes:
        """Nothing comes any more."""
        return self.ended(self._failed or self._shown.failing, now)

    def give_up(self) -> bytes:
        """Show everything that is held back, as it is."""
        out = self._release(last_words=False)
        block, self._block = self._block, None
        return out + (b"".join(block.lines) if block is not None else b"")

    def _line(self, line: bytes, now: float) -> bytes:
        block = self._block
        if block is not None:
            if block.takes(line):
                block.last = now
                return self.give_up() if block.size > MOST_HELD else b""  # too large to be a traceback
            return self._complete(now) + self._line(line, now)
        if _START.match(line):
            self._block = Block(line, now)
            return b""
        if self._held:
            return self._hold(line, now)
        return self._plain(line)

    def _plain(self, line: bytes) -> bytes:
        if self._shown.failing and _NATIVE.match(line):
            first = self._shown.first_rank(self._shown.lines, _NUMBER.sub(b"#", _ADDRESS.sub(b"#", line)), self._rank)
            if first is not None:
                self._left_out += 1
                self._left_out_like = first
                return b""
        return line

    def _complete(self, now: float) -> bytes:
        block, self._block = self._block, None
        assert block is not None
        last_words = block.uncaught or self._failed
        if self._held or (not last_words and self._short(block, peek=True) is not None):
            return self._hold(block, now)
        return self._show(block, last_words)

    def _show(self, block: Block, last_words: bool) -> bytes:
        short = self._short(block) if last_words else None
        if short is not None:
            return short
        self._shown.tracebacks.setdefault(block.key(), self._rank)
        return b"".join(block.lines)

    def _short(self, block: Block, peek: bool = False) -> bytes | None:
        """The one line to show instead of a traceback; None if it should be shown."""
        shown = self._shown
        if block.is_interrupt() and shown.interrupted:
            return self._summary(block.message(), "")
        if block.is_echo():
            return self._summary(block.message(), "another rank left first; ")
        key = block.key()
        if self._failed and not block.told:
            # It was ended while it printed: its beginning is enough to know the error by.
            key = next((known for known in shown.tracebacks if known.startswith(key)), key)
        first = shown.tracebacks.get(key) if peek else shown.first_rank(shown.tracebacks, key, self._rank)
        if first is None or first == self._rank:
            return None
        text = f"rank {self._rank}: same error as rank {first} (full text in {shown.text_of(self._rank)})\n"
        return text.encode(errors="replace")

    def _summary(self, message: bytes, why: str) -> bytes:
        cut = message if len(message) <= SUMMARY_WIDTH else message[:SUMMARY_WIDTH] + b"..."
        head = f"rank {self._rank}: ".encode()
        return head + cut + f" ({why}full text in {self._shown.text_of(self._rank)})\n".encode(errors="replace")

    def _native_summary(self) -> bytes:
        count, self._left_out = self._left_out, 0
        if not count:
            return b""
        lines = "line" if count == 1 else "lines"
        text = (
            f"rank {self._rank}: {count} more {lines} like rank {self._left_out_like}'s "
            f"(full text in {self._shown.text_of(self._rank)})\n"
        )
        return text.encode(errors="replace")

    def _hold(self, item: Block | bytes, now: float) -> bytes:
        if not self._held:
            self._held_until = now + HOLD
        self._held.append(item)
        self._held_size += len(item) if isinstance(item, bytes) else item.size
        return self._release(last_words=False) if self._held_size > MOST_HELD else b""

    def _release(self, last_words: bool) -> bytes:
        held, self._held, self._held_size = self._held, [], 0
        return b"".join(
            self._show(item, last_words or item.uncaught) if isinstance(item, Block) else self._plain(item)
            for item in held
        )
