"""Runs jobs of this folder under plain torchrun and writes what each rank did into README.md's table.

    python tests/jobs/observe.py uneven-steps/shards_ddp        one job
    python tests/jobs/observe.py uneven-steps healthy           whole kinds
    python tests/jobs/observe.py --new                          those that have no row yet

rankcall plays no part in it: this is the evidence that any tool could have. Stacks come from py-spy.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from labels import JOBS, Label, all_jobs

README = JOBS / "README.md"
BEGIN, END = "<!-- observed: begin -->", "<!-- observed: end -->"
HEADER = "| job | ranks | expected | plain torchrun: what happens |\n|---|---|---|---|"
LIMIT_S = 25.0
PATIENT_LIMIT_S = 75.0  # for jobs that end by themselves, be it by a time-out
YOUNGEST_HANG_S = 6.0  # before that a quiet rank may just be importing
QUIET_LOOKS = 5  # so many looks in a row, LOOK_S apart, without CPU time: it hangs
LOOK_S = 0.8
_FAILED = re.compile(r"rank\s*: (\d+) \(.*?\n\s*exitcode\s*: (-?\d+)", re.S)
_ERROR = re.compile(r"^(?:\[rank\d+\]: ?)?((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt|Died)\b.*)")
_FILE_LINE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_SPY_FRAME = re.compile(r"^\s+(\S+) \((.+):(\d+)\)$")


@dataclass
class Observed:
    """What was seen of one run: a text for each rank, and how it all ended."""

    seconds: float
    ending: str
    ranks: dict[str, str] = field(default_factory=dict)


def command_of(label: Label, logs: Path) -> list[str]:
    """The plain command line, without rankcall."""
    if label.form == "command":
        return [sys.executable, *label.target()]
    ours = {"--stall-after", "--on-hang"}
    words = list(label.run_args)
    kept = [w for i, w in enumerate(words) if w not in ours and (i == 0 or words[i - 1] not in ours)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(label.nproc)]
    return [*torchrun, "--log-dir", str(logs), "--redirects", "3", *kept, *label.target()]


def rank_processes(root: psutil.Process) -> dict[str, psutil.Process]:
    """The live ranks below the launcher: the nearest descendants that have RANK in their environment."""
    found: dict[str, psutil.Process] = {}
    for process in root.children(recursive=True):
        try:
            rank = process.environ().get("RANK")
            parent = process.parent()
            inherited = parent is not None and parent.pid != root.pid and parent.environ().get("RANK") is not None
        except psutil.Error:
            continue
        if rank is not None and not inherited:
            found[rank if rank not in found else f"{rank} again"] = process
    return found or _nameless_children(root)


def _nameless_children(root: psutil.Process) -> dict[str, psutil.Process]:
    """Ranks that got their number as an argument: the launcher's children in order of their start."""
    children = [one for one in root.children() if "resource_tracker" not in " ".join(one.cmdline())]
    return {f"process {number}": one for number, one in enumerate(children)}


def stack_line(process: psutil.Process) -> str:
    """One phrase: the innermost frame, and the innermost one in the job's own files."""
    try:
        if process.status() == psutil.STATUS_STOPPED:
            return "stopped (state T)"
        command = ["py-spy", "dump", "--nonblocking", "--full-filenames", "--pid", str(process.pid)]
        dump = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    except (psutil.Error, subprocess.TimeoutExpired) as error:
        return f"no stack ({type(error).__name__})"
    main = dump.split('"MainThread"')[-1] if '"MainThread"' in dump else dump
    frames: list[tuple[str, str, str]] = []
    for line in main.splitlines()[1:]:
        if line.startswith("Thread "):
            break
        if match := _SPY_FRAME.match(line):
            frames.append((match.group(1), match.group(2), match.group(3)))
    own = next((f"{Path(file).name}:{line}" for _, file, line in frames if _is_own(file)), "")
    inner = frames[0][0] if frames else "no Python stack"
    torch_name = next((name for name, file, _ in frames if "distributed_c10d" in file and name != "wrapper"), "")
    return f"in `{torch_name or inner}` from {own}" if own else f"in `{inner}`"


def _is_own(file: str) -> bool:
    return "site-packages" not in file and "/lib/python" not in file and "<frozen" not in file


def workers_line(process: psutil.Process) -> str:
    """What the rank's own child processes do, if it has any that are interesting."""
    try:
        children = [child for child in process.children() if "python" in child.exe()]
    except psutil.Error:
        return ""
    lines = {stack_line(child) for child in children}
    told = sorted(line for line in lines if "resource_tracker" not in line and "no " not in line)
    return f"; its children {', '.join(told)}" if told else ""


def last_words(text: str) -> str:
    """The last exception of a rank's stderr, with the job's own line; or the reason of an abort."""
    own, error = "", ""
    for line in text.splitlines():
        if (match := _FILE_LINE.search(line)) and _is_own(match.group(1)):
            own = f" at {Path(match.group(1)).name}:{match.group(2)}"
        if match := _ERROR.match(line):
            error = match.group(1)
        if line.strip().startswith("what():"):
            error, own = "abort: " + line.strip()[8:], ""
    if not error:
        return ""
    short = re.sub(r"[^\s\[]*/gloo/", "", error).partition(". This is typically")[0]
    return f"`{short[:120].replace('|', '/').strip()}`{own}"


def watch(label: Label, process: psutil.Popen, limit: float, patient: bool) -> tuple[bool, dict[str, str]]:
    """Look until the job ends or hangs. Returns whether it ended, and if not each live rank's stack."""
    began, quiet, spent = time.monotonic(), 0, -1.0
    while time.monotonic() - began < limit:
        if process.poll() is not None:
            return True, {}
        time.sleep(LOOK_S)
        if patient or time.monotonic() - began < YOUNGEST_HANG_S:
            continue
        ranks = _everything(process)
        now = sum(_cpu(one) for one in ranks)
        quiet = quiet + 1 if 0 <= now - spent < 0.06 else 0
        spent = now
        if ranks and quiet >= QUIET_LOOKS:
            break
    seen = {}
    for rank, one in sorted(rank_processes(process).items()):
        seen[rank] = _busy_word(one) + stack_line(one) + workers_line(one)
    return False, seen


def _everything(process: psutil.Popen) -> list[psutil.Process]:
    try:
        return [one for one in process.children(recursive=True) if one.is_running()]
    except psutil.Error:
        return []


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
        return float(times.user + times.system)
    except psutil.Error:
        return 0.0


def _busy_word(process: psutil.Process) -> str:
    before = _cpu(process)
    time.sleep(0.8)
    return "spins " if _cpu(process) - before > 0.1 else ""


def end_tree(process: psutil.Popen) -> None:
    """End the launcher and everything it started, stopped processes and loader workers too."""
    for one in [*_everything(process), process]:
        try:
            one.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue
    process.wait(10)


def observe(label: Label) -> Observed:
    """Run one job plainly and put into words what became of each rank."""
    patient = label.outcomes[0] != "hung"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="observed-") as folder:
        logs = Path(folder)
        with (logs / "console").open("wb") as console:
            process = psutil.Popen(
                command_of(label, logs / "ranks"),
                stdout=console,
                stderr=console,
                stdin=subprocess.DEVNULL,
                cwd=label.working_folder,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
            ended, seen = watch(label, process, PATIENT_LIMIT_S if patient else LIMIT_S, patient)
            seconds = time.monotonic() - began
            end_tree(process)
        console_text = (logs / "console").read_text(errors="replace")
        failed = dict(_FAILED.findall(console_text))
        for file in sorted(logs.glob("ranks/*/attempt_*/*/stderr.log")):
            rank = file.parent.name
            words = last_words(file.read_text(errors="replace"))
            if ended:
                code = f"exit {failed[rank]}" if rank in failed else "exit 0" if not failed else "exit 0 or ended"
                seen[rank] = f"{code} {words}".strip()
            elif rank not in seen:
                seen[rank] = f"gone {words}".strip()
        if label.form == "command" and (words := last_words(console_text)):
            seen["console"] = words
    ending = f"exit {process.returncode}" if ended else "hangs"
    return Observed(seconds, ending, seen)


def in_one_line(seen: Observed) -> str:
    """Ranks that did the same are named together."""
    same: dict[str, list[str]] = {}
    for rank, text in sorted(seen.ranks.items()):
        same.setdefault(text, []).append(rank)
    parts = [f"**{','.join(ranks)}**: {text}" for text, ranks in same.items()]
    return f"{seen.ending} ({seen.seconds:.0f} s). " + "; ".join(parts)


def expectation(label: Label) -> str:
    """The label in one cell."""
    if label.healthy:
        return "healthy"
    culprits = " or ".join(",".join(map(str, sorted(one))) for one in label.culprits) or "any"
    names = label.pitfall + (f" (or {', '.join(label.also)})" if label.also else "")
    said = "" if label.said_as == ("verdict",) else f", as {' or '.join(label.said_as)}"
    return f"{names}; culprit {culprits}; {' or '.join(label.outcomes)}{said}"


def rows() -> dict[str, str]:
    """What README.md says now about each job: the last cell of its row."""
    if not README.exists():
        return {}
    table = README.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    cells = [line.strip("| ").split(" | ", 3) for line in table.splitlines()[3:] if line.startswith("| ")]
    return {name: text for name, _, _, text in cells}


def write_rows(news: dict[str, str]) -> None:
    """Put `news` into README.md's table, in order, with today's labels; rows of jobs that are gone are dropped."""
    seen = rows() | news
    lines = [
        f"| {job.name} | {job.nproc} | {expectation(job)} | {seen[job.name]} |"
        for job in all_jobs()
        if job.name in seen
    ]
    whole = README.read_text(encoding="utf-8") if README.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = whole.partition(BEGIN)
    table = "\n".join([BEGIN, HEADER, *lines, END])
    README.write_text(before + table + rest.partition(END)[2], encoding="utf-8")


def main() -> None:
    """Observe the chosen jobs one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="job names or kinds")
    parser.add_argument("--new", action="store_true", help="only jobs without a row")
    parser.add_argument("--labels", action="store_true", help="only write the labels anew, run nothing")
    parser.add_argument("--dry", action="store_true", help="print, leave README.md alone")
    options = parser.parse_args()
    known = rows()
    if options.labels:
        write_rows({})
        return
    for label in all_jobs():
        chosen = not options.names or label.name in options.names or label.kind in options.names
        if not chosen or (options.new and label.name in known):
            continue
        text = in_one_line(observe(label))
        print(f"{label.name}: [{expectation(label)}] {text}", flush=True)
        if not options.dry:
            write_rows({label.name: text})


if __name__ == "__main__":
    main()
