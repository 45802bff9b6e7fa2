"""How fast `rankcall why` reads the dumps of large jobs, against unpickling the same files and torch's own analyser.

    python benchmarks/why_scale.py                           # 256 and 1,024 ranks, a fit over five sizes, 16,384 ranks
    python benchmarks/why_scale.py --shape cascade --ranks 64 256 --no-torch --no-fit

Three shapes of jobs, each with one rank stuck:

    one       all ranks in one group (data parallel), 2,000 entries a rank
    cascade   8-way tensor parallel times data parallel, 2,000 entries a rank
    mesh      pipeline x data x context x tensor, 200 entries a rank

Everything is measured on the same folder, each part in a process of its own, the files in the page cache:

    floor     unpickle the files safely (no globals), one after another, on one core; nothing is kept. The time of the
              reading alone, without the interpreter's start. "no gc": the same with garbage collection off
    rankcall  `rankcall why FOLDER --format json --output FILE`, less the time of `rankcall version`
    torch     torch.distributed.flight_recorder.fr_trace, whole, up to a time limit

Times are medians over --repeat runs, floor and rankcall in turn; "ratio" is of these, "cpu" the ratio of the processor
time of all processes, which other programs on the machine disturb less. Memory is that of the whole process tree,
shared pages counted once (the sum of PSS, looked at every 20 ms in a run of its own), and beside it the largest single
process. Exit code 1 if rankcall was over its limits or did not name the stuck rank, and no other.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import psutil  # noqa: E402

from dumps.bulk import Bulk, bulk  # noqa: E402
from dumps.programs import Plan  # noqa: E402
from dumps.write import Form  # noqa: E402

SHAPES = ("one", "cascade", "mesh")
ENTRIES = {"one": 2000, "cascade": 2000, "mesh": 200}
RANKS = {"one": (256, 1024), "cascade": (256, 1024), "mesh": (16384,)}
FIT_RANKS = (64, 128, 256, 512, 1024)
LOOK_S = 0.02
# From so many ranks on: times the floor, MiB. Below the first, the start of the reading processes counts most.
LIMITS = ((2048, 2.0, 1536.0), (256, 1.5, 400.0))


def plan_of(shape: str, ranks: int) -> Plan:
    """The training loop of a shape. Raises SystemExit for a number of ranks that it cannot have."""
    axes = {
        "one": {"data": ranks},
        "cascade": {"data": ranks // 8, "tensor": 8},
        "mesh": {"pipeline": 8, "data": ranks // 256, "context": 4, "tensor": 8},
    }[shape]
    product = 1
    for length in axes.values():
        product *= length
    if product != ranks or min(axes.values()) < 2:
        sys.exit(f"the shape {shape} needs a multiple of {512 if shape == 'mesh' else 16} ranks; got {ranks}")
    layers = {"one": 4, "cascade": 4, "mesh": 1}[shape]
    micro_batches = 2 if shape == "mesh" else 1
    buckets = (1_048_576,) * {"one": 8, "cascade": 4, "mesh": 2}[shape]
    return Plan(
        axes, layers=layers, micro_batches=micro_batches, buckets=buckets, schedule="1f1b", norm_syncs=True,
        forward_syncs=True,  # so that ranks stop at different places, and echo each other
    )  # fmt: skip


# --- running a process -------------------------------------------------------------------------------------------


@dataclass
class Ran:
    """One process: seconds, exit code (None: stopped at the limit), memory of the largest process and of the tree.
    `cpu_s`: processor time, of its descendants, too."""

    seconds: float
    cpu_s: float
    code: int | None
    largest_mib: float
    tree_mib: float
    output: str


def run(command: list[str], limit_s: float, sample: bool = False) -> Ran:
    """Run a command to its end, or to the limit; then its whole process group is killed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with tempfile.TemporaryFile() as output:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        peak = [0.0]
        ended = threading.Event()
        sampler = threading.Thread(target=_sample, args=(process.pid, ended, peak))
        if sample:
            sampler.start()
        timer = threading.Timer(limit_s, _kill, args=(process.pid,))
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        timer.cancel()
        ended.set()
        if sample:
            sampler.join()
        process.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
        output.seek(0)
        text = output.read().decode(errors="replace")
    code = None if seconds >= limit_s else process.returncode
    return Ran(seconds, usage.ru_utime + usage.ru_stime, code, usage.ru_maxrss / 1024, peak[0], text)


def _kill(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _sample(pid: int, ended: threading.Event, peak: list[float]) -> None:
    """Keep the highest sum of PSS over a process and its descendants, in MiB."""
    while not ended.wait(LOOK_S):
        try:
            tree = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
        except psutil.Error:
            return
        peak[0] = max(peak[0], sum(_pss_mib(each) for each in tree))


def _pss_mib(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            for line in lines:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


# --- the floor: this file, run as a process of its own -----------------------------------------------------------


class _Plain(pickle.Unpickler):
    """Plain data only."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"refused: {module}.{name}")


def read_floor(folder: Path, collect: bool) -> None:
    """Unpickle all files one after another; prints the seconds and how many entries there were."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if not collect:
        gc.disable()
    entries = 0
    begin, cpu = time.perf_counter(), time.process_time()
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            entries += len(_Plain(file).load()["entries"])
    spent = {"seconds": time.perf_counter() - begin, "cpu_s": time.process_time() - cpu}
    print(json.dumps({**spent, "entries": entries}))


# --- one folder --------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What was measured of one job."""

    shape: str
    ranks: int
    entries: int
    floor_s: list[float] = field(default_factory=list)
    bare_s: list[float] = field(default_factory=list)  # the floor without garbage collection
    floor_cpu_s: list[float] = field(default_factory=list)
    why_s: list[float] = field(default_factory=list)
    why_cpu_s: list[float] = field(default_factory=list)
    tree_mib: float = 0.0
    largest_mib: float = 0.0
    named: str = ""
    right: bool = False

    @property
    def ratio(self) -> float:
        return statistics.median(self.why_s) / statistics.median(self.floor_s)

    @property
    def cpu_ratio(self) -> float:
        return statistics.median(self.why_cpu_s) / statistics.median(self.floor_cpu_s)

    @property
    def within(self) -> bool:
        for ranks, times, memory in LIMITS:
            if self.ranks >= ranks:
                return self.right and self.ratio <= times and self.tree_mib <= memory
        return self.right


def measure(job: Bulk, shape: str, folder: Path, options: argparse.Namespace, start: Ran, memory: bool) -> Result:
    """`start`: what the process costs that reads nothing."""
    result = Result(shape, job.layout.world, job.entries)
    floor = [sys.executable, str(Path(__file__).resolve()), "--floor", str(folder)]
    with tempfile.TemporaryDirectory(prefix="rankcall-report-") as out:
        report = Path(out) / "report.json"
        why = [
            *(sys.executable, "-m", "rankcall", "why", str(folder)),
            *("--format", "json", "--output", str(report)),
        ]  # fmt: skip
        run(floor, options.limit)  # the files are in the page cache from here on
        for _ in range(options.repeat):
            read = json.loads(run(floor, options.limit).output)
            result.floor_s.append(read["seconds"])
            result.floor_cpu_s.append(read["cpu_s"])
            result.bare_s.append(json.loads(run([*floor, "--no-gc"], options.limit).output)["seconds"])
            done = run(why, options.limit)
            result.why_s.append(done.seconds - start.seconds)
            result.why_cpu_s.append(done.cpu_s - start.cpu_s)
            if done.code not in (0, 1):
                how = "stopped at the limit" if done.code is None else f"exit code {done.code}"
                result.named = f"{how}: {done.output.strip()[-200:]}"
                return result
        if memory:
            sampled = run(why, options.limit, sample=True)
            result.tree_mib, result.largest_mib = sampled.tree_mib, sampled.largest_mib
        verdict = json.loads(report.read_text())["verdict"]
    if verdict is None:
        result.named = "no verdict"
    else:
        result.named = f"{verdict['pitfall']} on {_few(verdict['culprits'])}"
        result.right = verdict["culprits"] == [job.stuck]
    return result


def _few(ranks: list[int]) -> str:
    return str(ranks) if len(ranks) <= 4 else f"{len(ranks)} ranks"


def ask_torch(folder: Path, limit_s: float) -> str:
    """torch's analyser on the folder, in words: time, memory, whom it names."""
    done = run([sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)], limit_s, sample=True)
    cost = f"{done.seconds:.1f} s, {done.tree_mib:.0f} MiB"
    if done.code is None:
        return f"stopped after {cost}"
    if done.code != 0:
        lines = done.output.strip().splitlines()
        return f"{cost}, exit code {done.code}: {lines[-1][:120] if lines else ''}"
    named: set[int] = set()
    for ranks in re.findall(r"missing ranks: \{([^}]*)\}", done.output):
        named |= {int(rank) for rank in ranks.split(",")}
    named |= {int(rank) for rank in re.findall(r"Culprit rank (\d+)", done.output)}
    blocks = len(re.findall(r"internal record id:", done.output))
    return f"{cost}, {blocks} blocks that name {_few(sorted(named))}"


def one_job(shape: str, ranks: int, options: argparse.Namespace, start: Ran, whole: bool) -> Result:
    """Write a job, measure, print its line. `whole`: with memory and torch."""
    entries = options.entries or ENTRIES[shape]
    folder = Path(tempfile.mkdtemp(prefix=f"rankcall-scale-{shape}-{ranks}-", dir=options.folder))
    try:
        job = bulk(plan_of(shape, ranks), entries, Form(frames=options.frames), seed=options.seed)
        job.write(folder)
        job.simulation.meetings.clear()  # it holds what the benchmark no longer needs
        result = measure(job, shape, folder, options, start, whole)
        floor, bare, why = map(statistics.median, (result.floor_s, result.bare_s, result.why_s))
        line = f"{shape:<8} {ranks:>6} {entries:>8} {bare:>6.2f} {floor:>8.2f} {why:>9.2f}"
        line += f" {result.ratio:>6.2f} {result.cpu_ratio:>5.2f}"
        if whole:
            line += f" {result.tree_mib:>9.0f} {result.largest_mib:>8.0f}"
            line += f"  {'OK' if result.within else 'NOT OK'}  {result.named}"
            if not result.right:
                line += f"  (stuck is {job.stuck})"
        print(line, flush=True)
        if whole and options.torch and (ranks < LIMITS[0][0] or options.torch_anyway):
            print(
                f"{'':<8} torch's analyser: {ask_torch(folder, options.torch_limit)} (stuck is {job.stuck})", flush=True
            )
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fit(results: list[Result]) -> str:
    """Least squares of rankcall's time over ranks times entries."""
    xs = [each.ranks * each.entries / 1e6 for each in results]
    ys = [statistics.median(each.why_s) for each in results]
    slope, intercept = statistics.linear_regression(xs, ys)
    mean = statistics.fmean(ys)
    left = sum((y - slope * x - intercept) ** 2 for x, y in zip(xs, ys, strict=True))
    total = sum((y - mean) ** 2 for y in ys)
    return f"{slope:.2f} s a million entries, {intercept:+.2f} s, R² = {1 - left / total:.4f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=SHAPES, help="only this shape; may be given several times")
    parser.add_argument("--ranks", type=int, nargs="+", help="these numbers of ranks, for every shape")
    parser.add_argument("--entries", type=int, help="entries a rank")
    parser.add_argument("--frames", action="store_true", help="with stacks in the dumps")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that a run may take")
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="leave torch's analyser out")
    parser.add_argument("--torch-limit", type=float, default=120.0, help="seconds that torch's analyser may take")
    parser.add_argument("--torch-anyway", action="store_true", help="ask torch's analyser about huge jobs, too")
    parser.add_argument("--no-fit", dest="fit", action="store_false", help="leave the series of sizes out")
    parser.add_argument("--fit-ranks", type=int, nargs="+", default=FIT_RANKS)
    parser.add_argument("--folder", type=Path, help="where the dumps go for the while; up to 3 GB")
    parser.add_argument("--floor", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--no-gc", dest="gc", action="store_false", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.floor:
        read_floor(options.floor, options.gc)
        return 0

    version = [sys.executable, "-m", "rankcall", "version"]
    start = sorted((run(version, 60) for _ in range(5)), key=lambda done: done.seconds)[2]
    print(
        f"rankcall's start: {start.seconds:.2f} s, taken off below; {os.cpu_count()} cores; medians of {options.repeat}"
    )
    head = (
        f"{'shape':<8} {'ranks':>6} {'entries':>8} {'no gc':>6} {'floor s':>8} {'rankcall':>9} {'ratio':>6} {'cpu':>5}"
    )
    print(f"{head} {'tree MiB':>9} {'largest':>8}")
    results = []
    for shape in options.shape or SHAPES:
        for ranks in options.ranks or RANKS[shape]:
            results.append(one_job(shape, ranks, options, start, whole=True))
    if options.fit:
        for shape in [each for each in options.shape or SHAPES if each != "mesh"]:
            print(f"\nseries of {shape}")
            print(head)
            series = [one_job(shape, ranks, options, start, whole=False) for ranks in options.fit_ranks]
            print(f"rankcall: {fit(series)}")
    return 0 if all(result.within for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
