"""A file with stacks, in whatever form a tool or a person left it -> one sample for each process.

Reads py-spy (text and JSON), gdb and pstack, pystack, faulthandler and the NCCL watchdog's trace; several processes in
one file, with headings or labels between them. Untrusted: sizes are bounded, what cannot be read is left out.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rankcall.diagnose.readers.faulthandler_text import samples_from_faulthandler
from rankcall.diagnose.readers.gdb_text import samples_from_gdb
from rankcall.diagnose.readers.py_spy import samples_from_py_spy_json, samples_from_py_spy_text
from rankcall.diagnose.readers.pystack_text import samples_from_pystack
from rankcall.diagnose.readers.stack_labels import lines_of, streams
from rankcall.diagnose.readers.stack_origins import Origin, origin_of_command, origin_of_heading, origin_of_name
from rankcall.diagnose.readers.stack_sample import Role, StackSample, python_frames
from rankcall.diagnose.readers.torch_trace_text import samples_from_torch_trace

LARGEST_FILE = 256 << 20  # bytes that are looked at
_LARGEST_JSON = 64 << 20
_MOST_SAMPLES = 65_536

_Reader = Callable[[Sequence[str]], list[StackSample]]


def _json_lines(lines: Sequence[str]) -> list[StackSample]:
    return samples_from_py_spy_json("\n".join(lines))


# How a stack of each form begins. A section of a file is read in one form until another one begins.
_FORMS: tuple[tuple[re.Pattern[str], _Reader], ...] = (
    (re.compile(r'\s*(?:Process \d+: |Thread (?:0x[0-9A-Fa-f]+|\d+) \([a-z+ ]+\)(?:: "|\s*$))'),
     samples_from_py_spy_text),
    (re.compile(r"\s*(?:Current thread|Thread) 0x[0-9a-fA-F]+.{0,200}\(most recent call first\):|Timeout \(\d+:"),
     samples_from_faulthandler),
    (re.compile(r"\s*(?:Traceback for thread \d|The frame stack for thread \d|Core file information:)"),
     samples_from_pystack),
    (re.compile(
        r"\s*(?:Thread \d+ \((?:Thread 0x|LWP |process )|(?:\(gdb\) )?#0 (?!.{1,500} from \S{1,500}:\d+\s*$)|\[New LWP "
        r"|Attaching to process |TID \d+:|PID \d+ - |Traceback \(most recent call first\):|#\d+ Frame 0x)"),
     samples_from_gdb),
    (re.compile(r"\[(?:$|\{| *$)"), _json_lines),
)  # fmt: skip
_FIRST_SIGNS = frozenset("PTC#[A(")  # what any of these can begin with
_RULER = re.compile(r"-{8,}|:{8,}|={8,}|\*{8,}|#{8,}")

_LAUNCHERS = re.compile(
    r"torch/distributed/(?:elastic/|run\.py|launch\.py|launcher/)|deepspeed/launcher/|accelerate/commands/launch"
)
_HELPERS = re.compile(
    r"torch/_inductor/compile_worker/|multiprocessing/(?:resource_tracker|forkserver|managers)\.py"
    r"|concurrent/futures/process\.py"
)


@dataclass(slots=True)
class _Section:
    """Lines of one form below one heading."""

    origin: Origin
    reader: _Reader
    lines: list[str] = field(default_factory=list)


def stacks_from_text(data: bytes, name: str = "") -> list[StackSample]:
    """Every process whose stacks the file holds, in its order; empty for a file that holds none. `name` is the file's
    path: it may say whose they are. A process that was looked at several times is there several times."""
    data = data[:LARGEST_FILE]
    found: list[StackSample] = []
    if data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        found = samples_from_py_spy_json(data[:_LARGEST_JSON].decode("utf-8", "replace"))
    if not found:
        lines = list(lines_of(data))
        for origin, part in streams(lines):
            for section in _sections(origin, part):
                found += _signed(section.reader(section.lines), section.origin)
                if len(found) > _MOST_SAMPLES:
                    break
        found += samples_from_torch_trace(lines)
    found = [dataclasses.replace(sample, role=_role(sample)) for sample in found[:_MOST_SAMPLES]]
    return _with_parents(_with_name(found, origin_of_name(name)))


def one_per_process(samples: Iterable[StackSample]) -> list[StackSample]:
    """One sample for each process, in order of first appearance: the last look at it, and a look that shows Python
    frames rather than one that shows none. A process without rank and pid is never taken for another."""
    chosen: dict[object, StackSample] = {}
    for place, sample in enumerate(samples):
        key: object = (sample.host, sample.rank, sample.pid, sample.role)
        if sample.pid is None and sample.rank is None:
            key = place
        before = chosen.get(key)
        if before is None or sample.has_python or not before.has_python:
            chosen[key] = sample
    return list(chosen.values())


def _sections(origin: Origin, lines: Sequence[str]) -> Iterator[_Section]:
    here = origin
    section: _Section | None = None
    for line in _with_banners(lines):
        heading = _heading(line, here)
        if heading is not None:
            here = heading
            if section is not None:
                yield section
            section = None
            continue
        reader = _form(line)
        if reader is not None and (section is None or reader is not section.reader):
            if section is not None:
                yield section
            section = _Section(here, reader)
        if section is not None:
            section.lines.append(line)
    if section is not None:
        yield section


def _with_banners(lines: Sequence[str]) -> Iterator[str]:
    """A name between two rulers, on three lines as dshbak, clush and more write it, made a heading of one line."""
    at = 0
    while at < len(lines):
        line = lines[at]
        if _RULER.fullmatch(line) and at + 2 < len(lines) and lines[at + 2] == line and _form(lines[at + 1]) is None:
            yield f"===== {lines[at + 1].strip()} ====="
            at += 3
        else:
            yield line
            at += 1


def _form(line: str) -> _Reader | None:
    """The reader of the form that begins in this line, None for a line in the middle of one."""
    if line.lstrip(" \t")[:1] not in _FIRST_SIGNS:
        return None
    return next((reader for begins, reader in _FORMS if begins.match(line)), None)


def _heading(line: str, here: Origin) -> Origin | None:
    """Whose stacks follow, if the line is a heading that says so."""
    found = origin_of_heading(line)
    if found is None or not found.says_something:
        return None
    if found.host and found.host != here.host and found.rank is None and found.number is None:
        return found  # another host: the rank above is none of its
    return found.over(here)


def _signed(samples: Sequence[StackSample], origin: Origin) -> list[StackSample]:
    """The samples with what the heading above them, the label before them and their command lines say."""
    rank = origin.rank
    if rank is None and origin.number is not None:
        pids = {sample.pid for sample in samples} | {t.tid for sample in samples for t in sample.threads}
        rank = None if origin.number in pids else origin.number
    signed = []
    for sample in samples:
        command = origin_of_command(sample.command)
        local = origin.local_rank if origin.local_rank is not None else command.local_rank
        signed.append(
            dataclasses.replace(
                sample,
                rank=_known(sample.rank, rank, command.rank),
                local_rank=local,
                host=sample.host or origin.host,
                pid=_known(sample.pid, origin.pid if len(samples) == 1 else None),
            )
        )
    return signed


def _known(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _with_name(samples: list[StackSample], origin: Origin) -> list[StackSample]:
    """What the file's name says. It names one rank, so it holds where the file shows one: a file of several says with
    its headings who they are."""
    ranks = [sample for sample in one_per_process(samples) if sample.role == "rank"]
    said = origin.rank
    if said is None and origin.number is not None and all(origin.number != sample.pid for sample in samples):
        said = origin.number
    alone = len(ranks) <= 1 and all(sample.rank is None for sample in samples)
    return [
        dataclasses.replace(
            sample,
            rank=said if alone and sample.role != "launcher" else sample.rank,
            local_rank=_known(sample.local_rank, origin.local_rank if alone else None),
            host=sample.host or origin.host,
            pid=_known(sample.pid, origin.pid if alone and sample.role == "rank" else None),
        )
        for sample in samples
    ]


def _with_parents(samples: list[StackSample]) -> list[StackSample]:
    """A process that a rank started belongs to that rank, and is none itself."""
    ranks = {(sample.host, sample.pid): sample for sample in samples if sample.role == "rank" and sample.pid}
    result = []
    for sample in samples:
        parent = ranks.get((sample.host, sample.parent)) if sample.parent is not None else None
        if parent is not None and parent is not sample:
            role = "other" if sample.role == "rank" else sample.role
            sample = dataclasses.replace(sample, rank=parent.rank, role=role)
        result.append(sample)
    return result


def _role(sample: StackSample) -> Role:
    main = sample.main
    frames = python_frames(main.frames) if main is not None else ()
    for frame in frames:
        if frame.file.endswith("torch/utils/data/_utils/worker.py") and frame.function == "_worker_loop":
            return "loader-worker"
        if frame.file.endswith("torch/multiprocessing/spawn.py"):
            # _wrap runs a spawned rank; join waits for them.
            return "rank" if frame.function.endswith("_wrap") else "launcher"
    if any(_LAUNCHERS.search(frame.file) for frame in frames):
        return "launcher"
    return "other" if any(_HELPERS.search(frame.file) for frame in frames) else "rank"
