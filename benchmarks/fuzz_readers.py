"""Whether any input, however damaged or hostile, brings down a reader of rankcall's.

    python benchmarks/fuzz_readers.py                            # 100,000 inputs for each reader: an hour or two
    python benchmarks/fuzz_readers.py --inputs 2000 --minutes 5
    python benchmarks/fuzz_readers.py --reader gdb --reader dumps --seed 7
    python benchmarks/fuzz_readers.py --reader gdb --replay build/fuzz/gdb-123.bin

The inputs are valid samples (of the simulator in tests/dumps, of the tests of diagnosis and rendering), damaged at
random places of their structure, and, for pickles, opcodes in any order. The same seed gives the same inputs. Each
reader runs in processes of its own, under a limit of memory and of CPU time for each input. A reader must answer, or
refuse in one sentence; a traceback, an input that breaks the limits, a malformed answer or one that a terminal would
obey is a fault. Only the reader of single dumps may be stopped by the limits: that is why it has worker processes.

Prints a table, and each kind of fault with its first traceback; the inputs are kept in build/fuzz. Exit code 1 on any
fault.
"""

from __future__ import annotations

import argparse
import io
import json
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "benchmarks")]

from fuzzing.targets import MIB, READERS, Reader, Refused, emptied  # noqa: E402

KEPT = 3  # inputs kept of each kind of fault
# Exit codes of a process: it could not make an input; it has grown, and another one is to go on.
OWN_FAULT, GROWN = 99, 98
BLOCKED_S = 90.0  # wall-clock time on one input: CPU time does not pass in a read that never returns
# Of one process: input in hand (0: none), done, accepted, refused, stopped, peak memory in KiB, slowest input, its CPU
# time in microseconds.
STATE = struct.Struct("<8Q")
_BY_NAME = {reader.name: reader for reader in READERS}


# --- the process that reads ------------------------------------------------------------------------------------------


def read_many(reader: Reader, seed: int, numbers: range, folder: Path) -> None:
    """Give these inputs to the reader; what happens stands in the folder, whenever this process ends."""
    with open(folder / "state", "r+b") as file:
        state = mmap.mmap(file.fileno(), STATE.size)
    _, done, accepted, refused, stopped, peak, slowest, longest = STATE.unpack_from(state)
    work = folder / "work"
    reader.make(random.Random(0))  # samples are made before anything is limited
    most = _address_space() + reader.memory * MIB // 4
    _limit_memory(reader)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for number in numbers:
        try:
            data = reader.make(random.Random(f"{reader.name}/{seed}/{number}"))
        except Exception:
            traceback.print_exc()
            sys.exit(OWN_FAULT)
        (folder / "input").write_bytes(data)
        STATE.pack_into(state, 0, number, done, accepted, refused, stopped, peak, slowest, longest)
        signal.setitimer(signal.ITIMER_PROF, reader.seconds)
        begin = time.process_time()
        fault = None
        try:
            fault = _fault_of(reader, data, emptied(work))
            accepted += 1
        except Refused:
            refused += 1
        except MemoryError:
            stopped += 1
        signal.setitimer(signal.ITIMER_PROF, 0)
        if fault is not None:
            accepted -= 1
            with open(folder / "faults", "a", encoding="utf-8") as out:
                out.write(json.dumps({"number": number, "trace": fault}) + "\n")
            shutil.copyfile(folder / "input", folder / f"fault-{number}")
        spent = int((time.process_time() - begin) * 1e6)
        if spent > longest:
            slowest, longest = number, spent
        done += 1
        peak = max(peak, *_peaks())
        if _address_space() > most and number + 1 < numbers.stop:
            # What an input leaves behind must not be held against the next one.
            STATE.pack_into(state, 0, number, done, accepted, refused, stopped, peak, slowest, longest)
            sys.exit(GROWN)
    STATE.pack_into(state, 0, 0, done, accepted, refused, stopped, peak, slowest, longest)


def _fault_of(reader: Reader, data: bytes, work: Path) -> str | None:
    """The traceback of a fault; None if the reader answered. Raises Refused, and MemoryError where that is allowed."""
    try:
        with redirect_stderr(io.StringIO()):
            reader.run(data, work)
    except Refused:
        raise
    except MemoryError as error:
        if reader.stops:
            raise
        return f"  File {_innermost(error)}\nMemoryError: over the limit\n"
    except Exception:
        return traceback.format_exc()
    return None


def _innermost(error: BaseException) -> str:
    """Where it was raised; a whole traceback would need memory that there may not be."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename} in {trace.tb_frame.f_code.co_name}" if trace is not None else ""


def _peaks() -> tuple[int, int]:
    """The most memory that this process and its children had, in KiB."""
    mine, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_maxrss, theirs.ru_maxrss


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _limit_memory(reader: Reader) -> None:
    most = _address_space() + reader.memory * MIB
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


# --- the process that watches ----------------------------------------------------------------------------------------


@dataclass
class Kind:
    """Faults that end in the same place."""

    trace: str
    count: int = 0
    kept: list[Path] = field(default_factory=list)


@dataclass
class Outcome:
    """What came of one reader's inputs."""

    done: int = 0
    accepted: int = 0
    refused: int = 0
    stopped: int = 0
    peak: int = 0
    slowest: int = 0
    longest: int = 0
    faults: dict[str, Kind] = field(default_factory=dict)

    @property
    def fault_count(self) -> int:
        return sum(kind.count for kind in self.faults.values())


class Shard:
    """One process after another over a part of the inputs: one that an input ends is followed by the next."""

    def __init__(self, reader: Reader, seed: int, numbers: range, folder: Path) -> None:
        self.reader, self.seed, self.numbers, self.folder = reader, seed, numbers, folder
        (folder / "work").mkdir(parents=True)
        (folder / "state").write_bytes(bytes(STATE.size))
        self.deaths: list[tuple[int, str]] = []
        self.stopped = 0
        self._seen = (-1, time.monotonic())
        self.process = self._start(numbers.start)

    def _start(self, first: int) -> subprocess.Popen[bytes]:
        asked = ["--part", self.reader.name, str(self.seed), str(first), str(self.numbers.stop), str(self.folder)]
        return subprocess.Popen([sys.executable, __file__, *asked], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def state(self) -> tuple[int, ...]:
        return STATE.unpack((self.folder / "state").read_bytes())

    def poll(self) -> bool:
        """True when all is done. Starts the next process where one has died of its input."""
        code = self.process.poll()
        number = self.state()[0]
        if code is None:
            if number != self._seen[0]:
                self._seen = (number, time.monotonic())
            elif time.monotonic() - self._seen[1] > BLOCKED_S:
                self.process.kill()
                self.process.wait()
            return False
        if code == OWN_FAULT or (number == 0 and code != 0):
            sys.exit(f"{self.reader.name}: the fuzzer itself failed; its traceback stands above")
        if number == 0:
            return True
        if code == GROWN:
            self.process = self._start(number + 1)
            return False
        if self.reader.stops and code in (-signal.SIGPROF, 1):
            self.stopped += 1
        else:
            self.deaths.append((number, _how(code)))
            shutil.copyfile(self.folder / "input", self.folder / f"fault-{number}")
        if number + 1 >= self.numbers.stop:
            return True
        self.process = self._start(number + 1)
        return False

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def _how(code: int) -> str:
    if code == -signal.SIGPROF:
        return "TooSlow: it takes more CPU time than any input may\n"
    if code == -signal.SIGKILL:
        return f"Blocked: it did not end within {BLOCKED_S:.0f} s\n"
    return f"Died: the process ended with code {code}\n"


def fuzz(reader: Reader, count: int, seed: int, jobs: int, until: float, keep: Path) -> Outcome:
    """Run the reader over its inputs, in `jobs` processes, until the time is up."""
    count = max(1, count // reader.share)
    jobs = min(jobs, count)
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="rankcall-fuzz-", dir=_memory()) as folder, _shards() as shards:
        for job in range(jobs):
            # Numbers begin at 1: 0 means that no input is in hand.
            numbers = range(1 + count * job // jobs, 1 + count * (job + 1) // jobs)
            shards.append(Shard(reader, seed, numbers, Path(folder) / str(job)))
        running = list(shards)
        while running and time.monotonic() < until:
            running = [shard for shard in running if not shard.poll()]
            time.sleep(0.1)
        for shard in shards:
            shard.stop()
            _gather(outcome, shard, keep)
    return outcome


@contextmanager
def _shards() -> Iterator[list[Shard]]:
    shards: list[Shard] = []
    try:
        yield shards
    finally:
        for shard in shards:
            shard.stop()


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _gather(outcome: Outcome, shard: Shard, keep: Path) -> None:
    _, done, accepted, refused, stopped, peak, slowest, longest = shard.state()
    outcome.done += done + shard.stopped + len(shard.deaths)
    outcome.accepted += accepted
    outcome.refused += refused
    outcome.stopped += stopped + shard.stopped
    outcome.peak = max(outcome.peak, peak)
    if longest > outcome.longest:
        outcome.slowest, outcome.longest = slowest, longest
    found = list(shard.deaths)
    if (shard.folder / "faults").exists():
        lines = (shard.folder / "faults").read_text(encoding="utf-8").splitlines()
        found += [(one["number"], one["trace"]) for one in map(json.loads, lines)]
    for number, trace in found:
        kind = outcome.faults.setdefault(_place(trace), Kind(trace))
        kind.count += 1
        if len(kind.kept) < KEPT:
            keep.mkdir(parents=True, exist_ok=True)
            kind.kept.append(keep / f"{shard.reader.name}-{number}.bin")
            shutil.copyfile(shard.folder / f"fault-{number}", kind.kept[-1])


def _place(trace: str) -> str:
    """The exception's type and the innermost place of the package: equal for faults of one kind."""
    lines = trace.rstrip().split("\n")
    places = [line.strip() for line in lines if line.startswith("  File ") and "rankcall/" in line]
    last = next((line for line in reversed(lines) if line and not line.startswith(" ")), "")
    return f"{last.split(':', 1)[0]} {places[-1] if places else last[:80]}"


# --- the table -------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="for each reader")
    parser.add_argument("--reader", action="append", choices=list(_BY_NAME), help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=None, help="at most, all readers together")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes at once")
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "fuzz", help="folder for inputs that are faults")
    parser.add_argument("--replay", type=Path, help="give this one input to the reader, and show what it raises")
    options = parser.parse_args()
    readers = [_BY_NAME[name] for name in options.reader] if options.reader else list(READERS)
    if options.replay is not None:
        return replay(readers[0], options.replay)
    until = time.monotonic() + options.minutes * 60 if options.minutes is not None else float("inf")
    print(f"{'reader':<16} {'inputs':>8} {'refused':>8} {'accepted':>8} {'stopped':>8} {'faults':>7} {'peak MiB':>9} "
          f"{'slowest s':>10} {'took s':>7}", flush=True)  # fmt: skip
    faults: list[tuple[str, Kind]] = []
    for reader in readers:
        begin = time.monotonic()
        outcome = fuzz(reader, options.inputs, options.seed, options.jobs, until, options.keep)
        print(
            f"{reader.name:<16} {outcome.done:>8} {outcome.refused:>8} {outcome.accepted:>8} {outcome.stopped:>8} "
            f"{outcome.fault_count:>7} {outcome.peak >> 10:>9} {outcome.longest / 1e6:>10.2f} "
            f"{time.monotonic() - begin:>7.0f}   input {outcome.slowest}",
            flush=True,
        )
        faults += [(reader.name, kind) for kind in outcome.faults.values()]
    for name, kind in sorted(faults, key=lambda fault: -fault[1].count):
        print(f"\n{name}, {kind.count} times; {', '.join(map(str, kind.kept))}\n{kind.trace.rstrip()[-2_000:]}")
    return 1 if faults else 0


def replay(reader: Reader, path: Path) -> int:
    with tempfile.TemporaryDirectory(prefix="rankcall-fuzz-", dir=_memory()) as folder:
        try:
            reader.run(path.read_bytes(), Path(folder))
        except Refused as refusal:
            print(f"refused: {refusal}")
        else:
            print("accepted")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        name, seed, first, stop, folder = sys.argv[2:]
        read_many(_BY_NAME[name], int(seed), range(int(first), int(stop)), Path(folder))
    else:
        sys.exit(main())
