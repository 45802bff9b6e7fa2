"""The guard: a tiny process that ends the ranks if the launcher dies without doing so. Standard library only.

Run by path, not imported: `python -I -S guard_process.py MARK`. It reads lines from standard input: `rank PID START`,
`gone PID START`, `keep FROM TO`, and `bye`, after which it leaves without doing anything. The end of the input without
`bye` means that the launcher is gone: then every rank, all of its session, and every process that carries MARK in its
environment are asked to end, and two seconds later made to. Then what the ranks had recorded is brought from memory
(FROM, which is removed) into the run folder's attempt (TO), where `rankcall why` reads it.
"""

from __future__ import annotations

import os
import signal
import sys
import time

PATIENCE = 2.0


def look_at(pid: int) -> tuple[int, int, int] | None:
    """(start time in clock ticks since boot, parent, session) of a process that runs; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19]), int(fields[1]), int(fields[3])


def carries(pid: int, mark: bytes) -> bool:
    """True if the process was started with MARK in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read(1 << 20).split(b"\0")
    except OSError:
        return False


def all_pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def targets(ranks: dict[int, int], mark: bytes) -> dict[int, int]:
    """pid -> start time of everything that has to end."""
    sessions = set()
    for pid, start in ranks.items():
        now = look_at(pid)
        # The rank itself may be gone while its children live: its session keeps its number until they end too.
        if now is None or now[0] == start:
            sessions.add(pid)
    found = {}
    for pid in all_pids():
        seen = look_at(pid)
        if seen is None or pid == os.getpid():
            continue
        start, _, session = seen
        if session in sessions or ranks.get(pid) == start or carries(pid, mark):
            found[pid] = start
    return found


def send(found: dict[int, int], number: int) -> None:
    for pid, start in found.items():
        if _same(pid, start):
            try:
                os.kill(pid, number)
                # A stopped process does not see SIGTERM before it goes on.
                os.kill(pid, signal.SIGCONT)
            except OSError:
                pass


def end_all(ranks: dict[int, int], mark: bytes) -> None:
    found = targets(ranks, mark)
    send(found, signal.SIGTERM)
    until = time.monotonic() + PATIENCE
    while found and time.monotonic() < until:
        time.sleep(0.05)
        found = {pid: start for pid, start in found.items() if _same(pid, start)}
    # Looked up again: something may have been started meanwhile.
    for _ in range(20):
        found = targets(ranks, mark)
        if not found:
            return
        send(found, signal.SIGKILL)
        time.sleep(0.05)


def _same(pid: int, start: int) -> bool:
    seen = look_at(pid)
    return seen is not None and seen[0] == start


def save(memory: str, attempt: str) -> None:
    """Move records and stacks out of memory; whatever fails, the memory is given back."""
    import shutil

    for name in os.listdir(memory) if os.path.isdir(memory) else ():
        part = "records" if name.endswith(".rec") else "stacks" if name.endswith(".stack") else ""
        if part:
            try:
                os.makedirs(os.path.join(attempt, part), mode=0o700, exist_ok=True)
                shutil.copyfile(os.path.join(memory, name), os.path.join(attempt, part, name))
            except OSError:
                continue
    shutil.rmtree(memory, ignore_errors=True)


def main() -> None:
    # All signals of terminals and schedulers are blocked by the launcher before it starts us.
    mark = os.fsencode(sys.argv[1])
    ranks: dict[int, int] = {}
    kept: tuple[str, str] | None = None
    for line in iter(sys.stdin.buffer.readline, b""):
        words = line.split()
        if words == [b"bye"]:
            return
        if line.startswith(b"keep "):
            memory, _, attempt = line[5:].rstrip(b"\n").partition(b"\0")
            kept = os.fsdecode(memory), os.fsdecode(attempt)
            continue
        if len(words) == 3 and words[0] == b"rank":
            ranks[int(words[1])] = int(words[2])
        elif len(words) == 3 and words[0] == b"gone" and ranks.get(int(words[1])) == int(words[2]):
            del ranks[int(words[1])]
    end_all(ranks, mark)
    if kept is not None:
        save(*kept)


if __name__ == "__main__":
    main()
