"""Damages bytes, and text that is read line by line."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from fuzzing.trees import TEXTS

_LONG_ENOUGH = 1_000_000  # characters
_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"[A-Za-z_]\w+")
_STRETCHED = (
    "x", "(", ")", "<", ">", " ", "\t", "0", "#", "[", "::", "a b ", "((", "()", "<>", "operator", " (", "-", "é",
    'File "', "\\x41", "rank", " at ", ") from ", ": ", '"', ",", "Thread ", "\\", "[rank0]:",
)  # fmt: skip
_SIGNS = ("", "\0", "\r", "\t", "\x1b[31m", "(", ")", "<", '"', "\\", "\u2028", "\ufffd", "\x85", "é")
_LABELS = ("[rank1]:", "node-3: ", "0: ", "[default0]:", "1: 2: ", "  ")
_LINES = (
    "", "\0", "\x1b[2J", "===== rank 3 =====", "## rank 99999999999", "==> rank1.txt <==", "[rank7]: ",
    "[1,3]<stdout>:", "Process 0: ", "Process 9999999999: x", "Thread 0x0 (most recent call first):",
    'Thread 1 (idle): "x"', "#0 ", "#0", "Thread 1 (LWP 1):", "[{", "]", "TID 1:", "--Type <RET>--",
    "Traceback for thread 1 [] (most recent call last):",
    "Fatal Python error: Aborted", "Current thread 0x1 (most recent call first):", '  File "a", line 1 in b',
    "host-a: x", "(gdb) bt", "Timeout (0:00:01)!", "[New LWP 1]", "Core file information:",
    '    (C) File "", line 1, in ',
)  # fmt: skip


def damaged_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """A few bits, bytes or pieces changed, cut off, doubled, or taken from another sample."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(changed) + 1)
        end = min(len(changed), at + rng.choice((1, 1, 2, 4, 8, 60, 500)))
        way = rng.randrange(8)
        if way == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            changed[at:end] = bytes(rng.choice((0, 255, 128, 10, 34, rng.randrange(256))) for _ in range(end - at))
        elif way == 2:
            del changed[at:end]
        elif way == 3:
            changed[at:at] = changed[at:end] * rng.choice((1, 2, 20))
        elif way == 4:
            other = rng.choice(others)
            begin = rng.randrange(len(other) + 1)
            changed[at:end] = other[begin : begin + rng.choice((4, 40, 400))]
        elif way == 5:
            del changed[at:]
        elif way == 6:
            number = rng.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1))
            changed[at : at + 8] = number.to_bytes(8, "little")
        else:
            changed[at:at] = rng.randbytes(rng.choice((1, 3, 30)))
    return bytes(changed)


def damaged_text(rng: random.Random, text: str, others: Sequence[str]) -> str:
    """Lines lost, doubled, moved, mixed with another sample's; numbers and words made absurd; one thing repeated very
    often. A reader that looks at each part of a line anew shows it here."""
    lines = text.split("\n")
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        if not lines or sum(map(len, lines)) > _LONG_ENOUGH:
            break
        at = rng.randrange(len(lines))
        way = rng.random()
        if way < 0.10:
            del lines[at : at + rng.choice((1, 1, 3, 1_000))]
        elif way < 0.18:
            lines[at:at] = lines[at : at + rng.choice((1, 3, 20))] * rng.choice((1, 2, 30))
        elif way < 0.24:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif way < 0.38:
            foreign = rng.choice(others).split("\n")
            begin = rng.randrange(len(foreign))
            lines[at:at] = foreign[begin : begin + rng.choice((1, 4, 40))]
        elif way < 0.50:
            lines.insert(at, rng.choice(_LINES))
        elif way < 0.66:
            lines[at] = _one_replaced(rng, _NUMBER, lines[at], ("0", "-1", "9" * 9, "9" * 20, "9" * 5_000, "x", "٣"))
        elif way < 0.78:
            lines[at] = _one_replaced(rng, _WORD, lines[at], TEXTS)
        elif way < 0.90:
            spot = rng.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:spot] + rng.choice(_SIGNS) + lines[at][spot + rng.choice((0, 1, 5)) :]
        elif way < 0.97:
            line = lines[at]
            lines[at] = rng.choice((line * 3, line.strip(), line[:-1], line.upper(), rng.choice(_LABELS) + line))
        else:
            lines[at] = _stretched(rng, lines[at])
    if rng.random() < 0.003:
        lines = lines * max(1, min(100_000 // max(1, len(lines)), 4 * _LONG_ENOUGH // max(1, sum(map(len, lines)))))
    return rng.choice(("\n", "\n", "\n", "\n", "\r\n", "\r")).join(lines)


def _one_replaced(rng: random.Random, pattern: re.Pattern[str], line: str, choices: Sequence[str]) -> str:
    found = list(pattern.finditer(line))
    if not found:
        return line + rng.choice(choices)
    one = rng.choice(found)
    return line[: one.start()] + rng.choice(choices) + line[one.end() :]


def _stretched(rng: random.Random, line: str) -> str:
    """One sign or piece of the line, repeated a hundred to a million times."""
    at = rng.randrange(len(line) + 1)
    piece = rng.choice((rng.choice(_STRETCHED), line[at : at + rng.choice((1, 2, 8))] or "x"))
    size = rng.choice((100, 2_000, 2_000, 20_000, 20_000, 1_000_000 if rng.random() < 0.2 else 50_000))
    return line[:at] + piece * (size // len(piece)) + line[at:]
