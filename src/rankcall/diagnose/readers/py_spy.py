"""`py-spy dump`, as JSON and as text -> the stacks of each process. Untrusted: what does not fit is no stack."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

import msgspec

from rankcall.diagnose.readers.stack_sample import (
    LONGEST_TEXT,
    MOST_FRAMES,
    MOST_THREADS,
    StackSample,
    StackThread,
    made_thread,
    native_frame,
    plain_frame,
    with_main,
)
from rankcall.snapshot import Frame

_MOST_RAW_FRAMES = 2_000
_MOST_PROCESSES = 65_536
_MOST_FAILURES = 16  # each may have read the whole text

_PROCESS = re.compile(r"\s*Process (\d{1,10}): ?(.*)")
_PARENT = re.compile(r"\s*Parent Process (\d{1,10})\b")
_PYTHON = re.compile(r"\s*Python v(\d\.\d{1,3})")
_THREAD = re.compile(r'\s*Thread (0x[0-9A-Fa-f]{1,16}|\d{1,20}) \(([a-z+ ]{1,30})\)(?:: "(.*)")?\s*$')
# `--locals` writes these below a frame: `x: <Tensor at 0x7f...>`.
_VARIABLE = re.compile(r"[^\s:()]{1,200}: ")
_VARIABLES = frozenset({"Arguments:", "Locals:"})
_NATIVE_SOURCE = frozenset({".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".cu", ".cuh", ".s", ".S", ".rs", ".inl"})
# Text dumps name files from the folder they are imported from: `torch/nn/functional.py`, `queue.py`. Which of these are
# no user's own can only be told by name.
_PACKAGES = frozenset({
    "IPython", "PIL", "absl", "accelerate", "aiohttp", "apex", "bitsandbytes", "boto3", "botocore", "click", "composer",
    "cv2", "datasets", "deepspeed", "diffusers", "fairscale", "fire", "flash_attn", "fsspec", "h5py", "horovod",
    "huggingface_hub", "hydra", "ignite", "ipykernel", "jax", "joblib", "lightning", "lightning_fabric", "litdata",
    "matplotlib", "mlflow", "monai", "mpi4py", "numpy", "nvidia", "omegaconf", "optree", "pandas", "peft", "psutil",
    "pyarrow", "pydantic", "pytorch_lightning", "ray", "requests", "rich", "s3fs", "safetensors", "scipy", "sklearn",
    "streaming", "tensorboard", "tensordict", "tensorflow", "timm", "tokenizers", "torch", "torch_npu", "torch_xla",
    "torchao", "torchaudio", "torchdata", "torchelastic", "torchmetrics", "torchtext", "torchvision", "tqdm",
    "transformer_engine", "transformers", "triton", "trl", "typer", "typing_extensions", "urllib3", "vllm", "wandb",
    "webdataset", "xformers", "zmq",
})  # fmt: skip
# Names of the standard library that are more often a user's own script or folder.
_LIKELY_USERS = frozenset({"code", "profile", "statistics", "test", "this", "token", "trace", "types"})
_STANDARD = (sys.stdlib_module_names | {"pkg_resources"}) - _LIKELY_USERS
# Code that torch.compile generated: a file named by a hash.
_GENERATED = re.compile(r"c[a-z2-7]{50,51}\.py$")


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: int = 0
    module: str | None = None  # the library of a native frame


_LARGEST_LINE = 1 << 31


class _ProcessInfo(msgspec.Struct):
    pid: int = 0
    command_line: str = ""
    parent: int | None = None


class _Thread(msgspec.Struct):
    pid: int | None = None
    os_thread_id: int | None = None
    thread_name: str | None = None
    active: bool = False
    owns_gil: bool = False
    frames: list[_Frame] = []


def threads_from_py_spy(data: bytes) -> list[tuple[int, str, tuple[Frame, ...]]]:
    """(native thread id, name, frames innermost first) of each thread; empty for what is no dump."""
    try:
        threads = msgspec.json.decode(data, type=list[_Thread], strict=False)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return []
    return [
        (
            min(max(thread.os_thread_id or 0, 0), (1 << 63) - 1),
            thread.thread_name or "",
            tuple(Frame(f.filename, min(max(f.line, 0), _LARGEST_LINE), f.name) for f in thread.frames[:MOST_FRAMES]),
        )
        for thread in threads
    ]


def samples_from_py_spy_json(text: str) -> list[StackSample]:
    """Each process of `py-spy dump --json`; several dumps may stand one after another, with anything in between."""
    decoder = json.JSONDecoder()
    found: list[StackSample] = []
    at = text.find("[")
    failures = 0
    while at >= 0 and len(found) < _MOST_PROCESSES and failures < _MOST_FAILURES:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
            failures += 1
        else:
            found += _from_json(value)
        # The next dump begins a line, as the first one did: no search through every list inside what was read.
        at = text.find("\n[", end - 1) + 1 or -1
    return found


def _from_json(value: object) -> list[StackSample]:
    try:
        threads = msgspec.convert(value, list[_Thread], strict=False)
    except (msgspec.ValidationError, RecursionError, UnicodeError):
        return []
    by_process: dict[int | None, list[StackThread]] = {}
    for thread in threads[: MOST_THREADS * 64]:
        mine = by_process.setdefault(thread.pid, [])
        if not thread.frames or len(mine) >= MOST_THREADS:
            continue
        state = ("active+gil" if thread.owns_gil else "active") if thread.active else "idle"
        frames = [
            native_frame(f.name, f.filename or f.module, min(max(f.line, 0), _LARGEST_LINE))
            if f.module
            else plain_frame(f.filename, min(max(f.line, 0), _LARGEST_LINE), f.name)
            for f in thread.frames[:_MOST_RAW_FRAMES]
        ]
        mine.append(made_thread(thread.os_thread_id or 0, frames, name=thread.thread_name or "", state=state))
    return [_sample(pid, "", None, found) for pid, found in by_process.items() if found]


def samples_from_py_spy_text(lines: Iterable[str]) -> list[StackSample]:
    """Each process of `py-spy dump`, `--native`, `--locals` and `--subprocesses` included."""
    found: list[StackSample] = []
    process: _Process | None = None
    for line in lines:
        head = _PROCESS.match(line)
        if head is not None or (process is None and _THREAD.match(line)):
            if process is not None:
                found += process.sample()
            if len(found) >= _MOST_PROCESSES:
                return found
            process = _Process(head)
        if head is None and process is not None:
            process.read(line)
    if process is not None:
        found += process.sample()
    return found


class _Process:
    """The part of a text dump that belongs to one process."""

    def __init__(self, head: re.Match[str] | None) -> None:
        self._pid = int(head.group(1)) if head else None
        self._command = head.group(2).strip() if head else ""
        self._parent: int | None = None
        self._python = "python3.x"
        self._threads: list[StackThread] = []
        self._head: re.Match[str] | None = None
        self._frames: list[Frame] = []
        self._indent = 0

    def read(self, line: str) -> None:
        thread = _THREAD.match(line)
        if thread is not None:
            self._end_thread()
            self._head = thread
        elif self._head is not None:
            self._read_frame(line)
        elif parent := _PARENT.match(line):
            self._parent = int(parent.group(1))
        elif version := _PYTHON.match(line):
            self._python = f"python{version.group(1)}"

    def _read_frame(self, line: str) -> None:
        text = line.strip()
        if not text.endswith(")") or text in _VARIABLES or _VARIABLE.match(text):
            return
        indent = len(line) - len(line.lstrip())
        if not self._frames:
            self._indent = indent
        if indent >= self._indent + 4 or len(self._frames) >= _MOST_RAW_FRAMES:
            return
        frame = _frame(text, self._python)
        if frame is not None:
            self._frames.append(frame)

    def _end_thread(self) -> None:
        if self._head is not None and self._frames and len(self._threads) < MOST_THREADS:
            tid, state, name = self._head.groups()
            self._threads.append(made_thread(int(tid, 0), self._frames, name=name or "", state=state))
        self._head, self._frames = None, []

    def sample(self) -> list[StackSample]:
        self._end_thread()
        return [_sample(self._pid, self._command, self._parent, self._threads)] if self._threads else []


def _sample(pid: int | None, command: str, parent: int | None, threads: Sequence[StackThread]) -> StackSample:
    names = [thread.name for thread in threads]
    tids = [thread.tid for thread in threads]
    main = -1
    if "MainThread" in names:
        main = names.index("MainThread")
    elif pid in tids:
        main = tids.index(pid)
    elif len(threads) == 1:
        main = 0
    return StackSample(None, "", pid, command[: LONGEST_TEXT * 4], with_main(threads, main), parent=parent)


def _frame(text: str, python: str) -> Frame | None:
    """`all_reduce (torch/distributed/distributed_c10d.py:3252)` or `poll (libc.so.6)`; None for anything else."""
    at = len(text) - 1
    for _ in range(4):  # a folder's name may hold " (" too
        at = text.rfind(" (", 0, at)
        if at <= 0:
            return None
        place = text[at + 2 : -1]
        if place.count("(") == place.count(")"):
            break
    name = text[:at].strip()
    file, _, number = place.rpartition(":")
    if not file or not number.isdecimal() or len(number) > 9:
        file, number = place, "0"
    if not file or (" " in name and not any(sign in name for sign in ("::", "<", "("))):
        return None  # a sentence with a remark in parentheses
    if number == "0" and not file.endswith(".py") and not file.startswith("<"):
        return native_frame(name, file)
    if PurePosixPath(file).suffix in _NATIVE_SOURCE:
        return native_frame(name, file, int(number))
    return Frame(_whole_path(file, python)[:LONGEST_TEXT], int(number), name[:LONGEST_TEXT])


def _whole_path(file: str, python: str) -> str:
    """A short name as a path that shows what it is: `…/site-packages/torch/nn/functional.py`. A user's own stays."""
    if file.startswith(("/", "<", "…")) or file[1:3] == ":\\":
        return file
    if _GENERATED.fullmatch(file):
        return f"<torch.compile {file}>"
    top, slash, _ = file.partition("/")
    if top in _PACKAGES or (not slash and top.removesuffix(".py") in _PACKAGES):
        return f"…/site-packages/{file}"
    if top.removesuffix(".py") in _STANDARD:
        return f"…/lib/{python}/{file}"
    if not slash and "." not in file:
        return f"…/bin/{file}"  # torchrun, accelerate: scripts without a suffix
    return file
