"""Pickles that no pickler writes: every opcode of protocols 0 to 5, in any order, with absurd lengths and indices."""

from __future__ import annotations

import pickletools
import random
import struct
from collections.abc import Callable

_UINT4 = (0, 1, 3, 255, 65_535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
_UINT8 = (0, 1, 3, 255, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_NAMES = (
    "os system", "builtins eval", "builtins getattr", "posix system", "subprocess Popen", "copyreg _reconstructor",
    "collections OrderedDict", "builtins list", "x y", " ", "a" * 300 + " b",
)  # fmt: skip


def opcodes(rng: random.Random) -> bytes:
    """A pickle made of random opcodes. Half of them keep count of the stack, so that they get far."""
    data = bytearray(b"\x80" + bytes((rng.choice((0, 1, 2, 3, 4, 5, 5, 6, 255)),)))
    careful = rng.random() < 0.5
    depth = 0
    for _ in range(rng.choice((1, 3, 8, 20, 60))):
        op = rng.choice(pickletools.opcodes)
        needs, gives = len(op.stack_before), len(op.stack_after)
        if careful and (op.code in ".0" or needs > depth):
            data += rng.choice((b"]", b"}", b")", b"K\x07", b"X\x01\x00\x00\x00a", b"(", b"N", b"2" if depth else b"N"))
            depth += 1
            continue
        data += op.code.encode("latin-1") + _argument(rng, op.arg.name if op.arg is not None else "")
        depth = max(0, depth - needs + gives)
    if rng.random() < 0.9:
        data += b"."
    return bytes(data)


def with_opcodes(rng: random.Random, valid: bytes) -> bytes:
    """A valid pickle with foreign opcodes between its own."""
    places = [place for _, _, place in pickletools.genops(valid) if place is not None]
    at = rng.choice(places)
    foreign = bytearray()
    for _ in range(rng.choice((1, 1, 2, 5))):
        op = rng.choice(pickletools.opcodes)
        foreign += op.code.encode("latin-1") + _argument(rng, op.arg.name if op.arg is not None else "")
    end = at if rng.random() < 0.6 else rng.choice(places)
    return valid[:at] + bytes(foreign) + valid[max(at, end) :]


def bomb(rng: random.Random) -> bytes:
    """A few bytes that ask for much: memory, or time."""
    return rng.choice(_BOMBS)(rng)


def _absurd_length(rng: random.Random) -> bytes:
    code = rng.choice((b"\x8e", b"\x8d", b"\x96"))  # BINBYTES8, BINUNICODE8, BYTEARRAY8
    return b"\x80\x05" + code + struct.pack("<Q", rng.choice(_UINT8)) + b"x."


def _absurd_frame(rng: random.Random) -> bytes:
    return b"\x80\x04\x95" + struct.pack("<Q", rng.choice(_UINT8)) + b"}."


def _absurd_memo(rng: random.Random) -> bytes:
    index = rng.choice((2**27, 2**30, 2**31 - 1, 2**31, 2**32 - 1))
    return b"\x80\x02]" + rng.choice((b"r", b"j")) + struct.pack("<I", index) + b"."


def _text_memo(rng: random.Random) -> bytes:
    return b"\x80\x02]" + rng.choice((b"p", b"g")) + str(rng.choice(_UINT8)).encode() + b"\n."


def _absurd_number(rng: random.Random) -> bytes:
    return b"\x80\x02\x8b" + struct.pack("<i", rng.choice((-1, -(2**31), 2**31 - 1, 100))) + b"\xff" * 50 + b"."


def _long_decimal(rng: random.Random) -> bytes:
    return b"\x80\x02" + rng.choice((b"I", b"L")) + b"9" * rng.choice((5_000, 100_000)) + b"\n."


def _duplicates(rng: random.Random) -> bytes:
    return b"\x80\x02(" + b"}" + b"2" * rng.choice((1_000, 100_000)) + rng.choice((b"l", b"t", b"d")) + b"."


def _unfolds(rng: random.Random) -> bytes:
    """Tuples of tuples: 2 ** n leaves for whoever walks, prints, compares or hashes them."""
    return b"\x80\x02}X\x07\x00\x00\x00entries]" + b")2\x86" + b"2\x86" * rng.choice((10, 30, 200)) + b"as."


def _hashes(rng: random.Random) -> bytes:
    """The same as the key of a dict: hashing takes 2 ** n steps."""
    return b"\x80\x02}" + b")2\x86" + b"2\x86" * rng.choice((8, 14, 18)) + b"K\x01s."


def _deep(rng: random.Random) -> bytes:
    depth = rng.choice((100, 10_000, 100_000))
    return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."


def _deep_tuples(rng: random.Random) -> bytes:
    return b"\x80\x02)" + b"\x85" * rng.choice((100, 10_000, 100_000)) + b"."


def _deep_key(rng: random.Random) -> bytes:
    """A deep tuple as a key: hashing it recurses in C."""
    return b"\x80\x02})" + b"\x85" * rng.choice((100, 10_000, 60_000)) + b"Ns."


def _out_of_band(rng: random.Random) -> bytes:
    return b"\x80\x05" + rng.choice((b"\x97.", b"\x97\x98.", b"\x96\x03\0\0\0\0\0\0\0abc\x98."))


_BOMBS: tuple[Callable[[random.Random], bytes], ...] = (
    _absurd_length, _absurd_frame, _absurd_memo, _text_memo, _absurd_number, _long_decimal, _duplicates, _unfolds,
    _hashes, _deep, _deep_tuples, _deep_key, _out_of_band,
)  # fmt: skip


def _argument(rng: random.Random, name: str) -> bytes:
    """The bytes behind an opcode; now and then too few of them, or a length that lies."""
    maker = _ARGUMENTS.get(name)
    data = maker(rng) if maker is not None else b""
    return data[: rng.randrange(len(data))] if data and rng.random() < 0.02 else data


def _sized(form: str, lengths: tuple[int, ...], content: bytes) -> Callable[[random.Random], bytes]:
    def make(rng: random.Random) -> bytes:
        body = content[: rng.randrange(len(content) + 1)]
        length = len(body) if rng.random() < 0.8 else rng.choice(lengths)
        return struct.pack(form, length) + body

    return make


def _line(*texts: bytes) -> Callable[[random.Random], bytes]:
    return lambda rng: rng.choice(texts) + b"\n"


def _packed(form: str, *values: float) -> Callable[[random.Random], bytes]:
    return lambda rng: struct.pack(form, rng.choice(values))


_TEXT = "entries é".encode()
_ARGUMENTS: dict[str, Callable[[random.Random], bytes]] = {
    "uint1": _packed("<B", 0, 1, 2, 127, 255),
    "uint2": _packed("<H", 0, 1, 255, 65_535),
    "int4": _packed("<i", 0, 1, -1, 2**31 - 1, -(2**31)),
    "uint4": _packed("<I", *_UINT4),
    "uint8": _packed("<Q", *_UINT8),
    "float8": _packed(">d", 0.0, -1.5, 1e308, float("nan"), float("inf")),
    "long1": _sized("<B", (0, 1, 255), b"\xff\x7f\x00\x80" * 4),
    "long4": _sized("<i", (0, 1, -1, 2**31 - 1), b"\xff\x7f\x00\x80" * 40),
    "string1": _sized("<B", (0, 255), _TEXT),
    "string4": _sized("<i", (0, -1, 2**31 - 1), _TEXT),
    "bytes1": _sized("<B", (0, 255), _TEXT),
    "bytes4": _sized("<I", _UINT4, _TEXT),
    "bytes8": _sized("<Q", _UINT8, _TEXT),
    "bytearray8": _sized("<Q", _UINT8, _TEXT),
    "unicodestring1": _sized("<B", (0, 255), _TEXT + b"\xed\xa0\x80\xff"),
    "unicodestring4": _sized("<I", _UINT4, _TEXT + b"\xed\xa0\x80\xff"),
    "unicodestring8": _sized("<Q", _UINT8, _TEXT + b"\xed\xa0\x80\xff"),
    "unicodestringnl": _line(b"entries", b"\\ud800", b"\\u12", b""),
    "decimalnl_short": _line(b"0", b"00", b"01", b"-1", b"9999999999", b"x", b"", b"9" * 5_000),
    "decimalnl_long": _line(b"0L", b"-1L", b"9" * 5_000 + b"L", b"L", b""),
    "floatnl": _line(b"1.5", b"nan", b"inf", b"1e999", b"x", b"1_0"),
    "stringnl": _line(b"'entries'", b"'\\x41'", b"'", b"x", b"''"),
    "stringnl_noescape": _line(b"0", b"1", b"99999999999", b"-1", b"x", b""),
    "stringnl_noescape_pair": lambda rng: rng.choice(_NAMES).replace(" ", "\n").encode() + b"\n",
}
