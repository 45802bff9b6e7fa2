"""Lines of many ranks that one terminal mixed, told apart again by what stands before each: `[rank3]:`, srun's `3: `,
mpirun's `[1,3]<stdout>:`, a host's name. Untrusted text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rankcall.diagnose.readers.stack_origins import Origin

_MOST_LINES = 1_000_000
_MOST_STREAMS = 65_536
_LONGEST_LINE = 16_000  # bytes; C++ names reach a few thousand

_SOMETHING = re.compile(rb"[^\r\n\0]")
_COLOURS = re.compile(r"\x1b(?:\[[0-9;?]{0,40}[@-~]|\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|[()][0-9A-B])")
_TIME = re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]? ")
_QUOTED = re.compile(r"(?:> ){1,5}")

# These say what they are.
_TORCH = re.compile(r"\[rank(\d{1,7})\]:? ?")
_MPIRUN = re.compile(r"\[(?:[\w.-]{1,80}@)?\d{1,7},(\d{1,7})\]<\w{1,10}>: ?")
_POD = re.compile(r"\[pod/([\w.-]{1,100})/[\w.-]{1,100}\] ?")
# These could be anything, and count where the beginning of a stack stands behind one.
_SRUN = re.compile(r" {0,6}(\d{1,7}): ?")
_HYDRA = re.compile(r"\[(\d{1,7})\] ?")
_TORCHRUN = re.compile(r"\[[A-Za-z_][A-Za-z_-]{0,40}(\d{1,6})\]:? ?")
_RANK_NAME = re.compile(r"\(?[Rr]ank[ _-]?(\d{1,7})\)?(?:: ?| +\| ?)")
_HOST = re.compile(r"([A-Za-z][\w.-]{0,100})(?:: | +\| )")
_STACK_BEGINS = re.compile(
    r"\s*(?:Process \d+: |Thread (?:0x[0-9A-Fa-f]|\d)|Current thread 0x|Traceback for thread \d|#0 )"
)

_Label = tuple[str, Origin, int]  # the label, what it says, where the line begins behind it


def lines_of(data: bytes) -> Iterator[str]:
    """The lines that are not empty, each cut to a bounded length, without colours, times and quotation marks before
    them."""
    at = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    for _ in range(_MOST_LINES):
        begins = _SOMETHING.search(data, at)
        if begins is None:
            return
        at = begins.start()
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        yield _clean(data[at : min(end, at + _LONGEST_LINE)].rstrip(b"\r").decode("utf-8", "replace"))
        at = end + 1


def _clean(line: str) -> str:
    if "\x1b" in line:
        line = _COLOURS.sub("", line)
    if line.startswith("> "):
        line = _QUOTED.sub("", line, count=1)
    if line[:1].isdecimal() or line[:2] == "[2":
        line = _TIME.sub("", line, count=1)
    return line


def streams(lines: Sequence[str]) -> list[tuple[Origin, list[str]]]:
    """The lines by the label before them, in order of first appearance; those without one are a stream of their own."""
    confirmed = _confirmed(lines)
    found: dict[str, tuple[Origin, list[str]]] = {}
    nobody = Origin()
    for line in lines:
        label = _certain(line)
        if label is None and confirmed:
            label = next((one for one in _possible(line) if one[0] in confirmed), None)
        key, origin, start = label or ("", nobody, 0)
        if key not in found and len(found) >= _MOST_STREAMS:
            continue
        found.setdefault(key, (origin, []))[1].append(line[start:])
    return list(found.values())


def _confirmed(lines: Iterable[str]) -> frozenset[str]:
    """The possible labels that the beginning of a stack stands behind."""
    found: set[str] = set()
    for line in lines:
        if "hread" in line or "Process " in line or "#0 " in line:
            for key, _, start in _possible(line):
                if len(found) < _MOST_STREAMS and _STACK_BEGINS.match(line, start):
                    found.add(key)
    return frozenset(found)


def _certain(line: str) -> _Label | None:
    if not line.startswith("["):
        return None
    if label := _TORCH.match(line) or _MPIRUN.match(line):
        rank = int(label.group(1))
        return f"rank {rank}", Origin(rank=rank), label.end()
    if label := _POD.match(line):
        return f"pod {label.group(1)}", Origin(host=label.group(1)), label.end()
    return None


def _possible(line: str) -> Iterator[_Label]:
    if label := _SRUN.match(line) or _HYDRA.match(line) or _RANK_NAME.match(line):
        rank = int(label.group(1))
        yield f"task {rank}", Origin(rank=rank), label.end()
    elif label := _TORCHRUN.match(line):
        yield f"torchrun {label.group(0).strip()}", Origin(local_rank=int(label.group(1))), label.end()
    elif label := _HOST.match(line):
        yield f"host {label.group(1)}", Origin(host=label.group(1)), label.end()
