"""The process that reads untrusted dumps. Started by `pool` as a script, with nothing but the standard library.

It takes one request a line (a JSON list: path, memory limit in bytes, CPU limit in seconds, whether
the times of completion are wanted) and answers each with
4 bytes (length of the header), 8 bytes (length of the columns), the header as JSON, the columns. A dump that needs more
than its limits ends this process; the parent knows then which file it was.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import resource
import stat
import struct
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING or __name__ != "__main__":
    from rankcall.diagnose.readers.dumps.reduce import NotADump, Tables, reduce
else:
    # A script of its own: neither rankcall nor anything that it depends on is loaded.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from reduce import NotADump, Tables, reduce

HEADER = struct.Struct("<IQ")


class DataUnpickler(pickle.Unpickler):
    """Dicts, lists, texts and numbers. Every way to reach code goes through a global, and there are none."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise NotADump(f"it asks for {module_name[:40]}.{global_name[:40]}: a dump of torch needs no code")

    def persistent_load(self, pid: Any) -> Any:
        raise NotADump("it refers to something outside the file")


def load(file: BinaryIO) -> Any:
    """The objects of a dump, pickle or JSON. Raises NotADump, or whatever the two parsers raise."""
    start = file.read(1)
    file.seek(0)
    if start == b"\x80":
        return DataUnpickler(file).load()
    data = file.read()
    if not data.strip():
        raise NotADump("it is empty")
    if data.lstrip()[:1] != b"{":
        raise NotADump("it is neither a pickle nor JSON")
    return json.loads(data)


def read(path: str, tables: Tables, ends: bool = True) -> tuple[dict[str, Any], bytes]:
    """Header and columns of one file, or a header that says why not."""
    try:
        with os.fdopen(_opened(path), "rb") as file:
            dump = load(file)
            size = os.fstat(file.fileno()).st_size
        return reduce(dump, tables, size, ends)
    except NotADump as error:
        return {"error": str(error), "tables": tables.take_new()}, b""
    except (EOFError, pickle.UnpicklingError) as error:
        return {"error": f"it is cut off or damaged ({_said(error)})", "tables": tables.take_new()}, b""
    except json.JSONDecodeError as error:
        return {"error": f"it is no complete JSON ({_said(error)})", "tables": tables.take_new()}, b""
    except OSError as error:
        return {"error": error.strerror or str(error), "tables": tables.take_new()}, b""
    except MemoryError:
        return {"error": "it asks for more memory than a dump of its size may", "tables": tables.take_new()}, b""
    except RecursionError:
        return {"error": "it is nested deeper than any dump", "tables": tables.take_new()}, b""
    except Exception as error:  # the unpickler raises nearly anything on damaged input
        return {"error": f"it is damaged ({type(error).__name__}: {_said(error)})", "tables": tables.take_new()}, b""


def _opened(path: str) -> int:
    """A regular file with something in it, and nothing that could block: not even one that took its place."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    about = os.fstat(descriptor)
    if stat.S_ISREG(about.st_mode) and about.st_size > 0:
        return descriptor
    os.close(descriptor)
    raise NotADump("it is empty" if stat.S_ISREG(about.st_mode) else "it is no regular file")


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())[:120]


def _limit(memory: int, seconds: int) -> None:
    """From here on: no more address space than the base plus `memory`, no more than `seconds` of CPU."""
    _set(resource.RLIMIT_AS, _BASE + memory)
    used = resource.getrusage(resource.RUSAGE_SELF)
    _set(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + seconds)


def _set(which: int, limit: int) -> None:
    """Lower or raise the soft limit, within the hard one that somebody may have set."""
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _address_space() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return 1 << 30


def main() -> None:
    """Answer requests until the parent closes the pipe."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing but answers may reach the pipe
    tables = Tables()
    # Hundreds of thousands of new dicts, none of them in a cycle: looking for cycles would double the time.
    gc.disable()
    for request in iter(requests.readline, b""):
        path, memory, seconds, ends = json.loads(request)
        _limit(memory, seconds)
        header, columns = read(path, tables, ends)
        try:
            encoded = json.dumps(header).encode()
        except ValueError as error:  # a number of ten thousand digits
            encoded, columns = json.dumps({"error": f"it is damaged ({_said(error)})", "tables": {}}).encode(), b""
            tables = Tables()
        answers.write(HEADER.pack(len(encoded), len(columns)) + encoded + columns)
        answers.flush()
        if "error" in header:
            gc.collect()


_BASE = _address_space()

if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)
