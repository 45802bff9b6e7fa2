"""What /proc says of a process: alive, state, CPU time, where it sleeps, its children. Reads only; a process that
went away meanwhile is an answer, never an error."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

from rankcall.record.stacks import stack_signal
from rankcall.snapshot import ProcessState

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_STATES: dict[str, ProcessState] = {
    "R": "running",
    "S": "sleeping",
    "I": "sleeping",
    "D": "uninterruptible",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
    "X": "gone",
}


class Stat:
    """The fields of /proc/PID/stat that are used: state, parent, session, CPU ticks, start time (ticks)."""

    __slots__ = ("cpu", "parent", "session", "start", "state")

    def __init__(self, data: bytes) -> None:
        fields = data[data.rindex(b")") + 2 :].split()
        self.state: ProcessState = _STATES.get(fields[0].decode("ascii", "replace"), "unknown")
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.cpu = int(fields[11]) + int(fields[12])
        self.start = int(fields[19])


def read_stat(pid: int, thread: int | None = None) -> Stat | None:
    """The process's (or its thread's) stat, None if it is gone."""
    where = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    try:
        with open(where, "rb") as file:
            return Stat(file.read())
    except (OSError, ValueError, IndexError):
        return None


def wanted_time(pid: int, thread: int) -> int | None:
    """Nanoseconds for which a thread has run or waited for a core: on a crowded machine a busy loop gets little of
    a core, but wants all of it. None where the kernel does not tell (/proc/PID/task/TID/schedstat)."""
    try:
        with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
            fields = file.read().split()
        return int(fields[0]) + int(fields[1])
    except (OSError, ValueError, IndexError):
        return None


def handles_stack_signal(pid: int) -> bool:
    """Whether the process has a handler for our stack signal; without one the signal would kill it."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (stack_signal() - 1) & 1)
    except (OSError, ValueError, IndexError):
        return False
    return False


def command_line(pid: int) -> tuple[str, ...]:
    """The command line of a process; empty for a zombie or one that is gone."""
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode("utf-8", "replace")[:200] for part in data.split(b"\0")[:30] if part)


def process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def all_stats() -> dict[int, Stat]:
    """The stat of every process that can be seen."""
    found: dict[int, Stat] = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                stat = read_stat(int(entry.name))
                if stat is not None:
                    found[int(entry.name)] = stat
    return found


def descendants(pid: int, stats: dict[int, Stat]) -> list[int]:
    """All processes below one, parents first."""
    children: dict[int, list[int]] = {}
    for child, stat in stats.items():
        children.setdefault(stat.parent, []).append(child)
    found: list[int] = []
    queue = list(children.get(pid, ()))
    while queue:
        child = queue.pop(0)
        if child not in found:
            found.append(child)
            queue.extend(children.get(child, ()))
    return found


def below(pid: int, most: int = 64) -> list[str]:
    """The processes below one, a line each: pid, state, command. The list that tells who was really started."""
    stats = all_stats()
    lines = []
    for child in descendants(pid, stats)[:most]:
        command = " ".join(command_line(child)) or f"[{process_name(child)}]"
        if "guard_process.py" in command:
            continue
        lines.append(f"{child} {stats[child].state} {command[:200]}")
    return lines


# --- where a thread sleeps ----------------------------------------------------------------------------------------

# System calls in which programs block, by number, as words and whether the first argument is a file descriptor.
# Numbers: linux/arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (arm64).
_X86_64 = {
    0: ("reading", True), 1: ("writing", True), 2: ("opening a file", False), 7: ("polling", False),
    23: ("selecting", False), 34: ("pausing", False), 35: ("sleeping", False), 42: ("connecting", True),
    43: ("accepting a connection", True), 44: ("sending", True), 45: ("receiving", True), 46: ("sending", True),
    47: ("receiving", True), 61: ("waiting for a child process", False), 72: ("waiting for a file lock", True),
    73: ("waiting for a file lock", True), 128: ("waiting for a signal", False), 202: ("waiting for a lock", False),
    230: ("sleeping", False), 232: ("polling", False), 247: ("waiting for a child process", False),
    257: ("opening a file", False), 270: ("selecting", False), 271: ("polling", False), 281: ("polling", False),
    288: ("accepting a connection", True), 299: ("receiving", True),
}  # fmt: skip
_ARM64 = {
    22: ("polling", False), 25: ("waiting for a file lock", True), 32: ("waiting for a file lock", True),
    56: ("opening a file", False), 63: ("reading", True), 64: ("writing", True), 72: ("selecting", False),
    73: ("polling", False), 95: ("waiting for a child process", False), 98: ("waiting for a lock", False),
    101: ("sleeping", False), 115: ("sleeping", False), 137: ("waiting for a signal", False),
    202: ("accepting a connection", True), 203: ("connecting", True), 206: ("sending", True),
    207: ("receiving", True), 211: ("sending", True), 212: ("receiving", True), 242: ("accepting a connection", True),
    260: ("waiting for a child process", False),
}  # fmt: skip


def blocked_in(pid: int, thread: int | None = None) -> str | None:
    """The system call a thread sleeps in, in words ("reading FIFO /tmp/x"); None if it runs or cannot be seen."""
    table = {"x86_64": _X86_64, "aarch64": _ARM64}.get(platform.machine())
    try:
        fields = Path(f"/proc/{pid}/task/{thread or pid}/syscall").read_text().split()
    except OSError:
        return None
    if table is None or not fields or not fields[0].isdigit():
        return None
    known = table.get(int(fields[0]))
    if known is None:
        return None
    words, has_descriptor = known
    if not has_descriptor or len(fields) < 2:
        return words
    target = _descriptor(pid, int(fields[1], 16))
    return f"{words} {target}" if target else words


def _descriptor(pid: int, number: int) -> str:
    """What a file descriptor is: a path, a FIFO, a pipe, a socket with its peer."""
    try:
        target = os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return ""
    if target.startswith("socket:["):
        return _socket(pid, target[8:-1])
    if target.startswith("pipe:"):
        return "a pipe"
    try:
        if Path(target).is_fifo():
            return f"FIFO {target}"
    except OSError:
        pass
    return target


def _socket(pid: int, inode: str) -> str:
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[9] == inode:
                return f"a socket to {_address(fields[2])}"
    return "a socket"


def _address(text: str) -> str:
    host, _, port = text.partition(":")
    if len(host) == 8:
        dotted = ".".join(str(byte) for byte in reversed(bytes.fromhex(host)))
        return f"{dotted}:{int(port, 16)}"
    return f"port {int(port, 16)}"


# --- who was killed for memory ------------------------------------------------------------------------------------


def oom_kills() -> int:
    """How many processes the memory cgroup of this process has lost to the OOM killer; 0 if it cannot be read."""
    for path in _memory_event_files():
        try:
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill" and value.strip().isdigit():
                    return int(value)
        except OSError:
            continue
    return 0


def _memory_event_files() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            files.append(Path("/sys/fs/cgroup/memory") / path.lstrip("/") / "memory.oom_control")
        elif not controllers:
            files.append(Path("/sys/fs/cgroup") / path.lstrip("/") / "memory.events")
    return files


def kernel_kill_lines(pids: set[int]) -> list[str]:
    """Lines of the kernel's log in which it killed one of these processes for memory. Empty where it is not allowed."""
    found: list[str] = []
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return found
    try:
        for _ in range(20_000):
            try:
                line = os.read(descriptor, 8192).decode("utf-8", "replace")
            except (BlockingIOError, OSError):
                break
            text = line.partition(";")[2].splitlines()[0] if ";" in line else line
            if ("Killed process" in text or "oom-kill" in text) and any(f" {pid} " in f"{text} " for pid in pids):
                found.append(text[:300])
    finally:
        os.close(descriptor)
    return found[-5:]
