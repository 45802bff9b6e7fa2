"""Runs jobs under `rankcall run` and says of each what was right: python tests/jobs/run.py [KIND or NAME …] [-j 2].

The table is the acceptance test of the whole; tests/test_jobs.py runs a part of it with every `make test`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from labels import Label, all_jobs


@dataclass
class Result:
    """What one run gave, and what was wrong with it (empty: all right)."""

    label: Label
    report: dict[str, Any]
    exit_code: int | None
    seconds: float
    stderr: str
    wrong: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> dict[str, Any] | None:
        return self.report.get("verdict")

    @property
    def said(self) -> list[dict[str, Any]]:
        """The verdict, or without one the findings."""
        return [self.verdict] if self.verdict else list(self.report.get("findings", []))


def run_job(label: Label, folder: Path) -> Result:
    """Run one job to its end in `folder` and judge the report."""
    run_dir = folder / "run"
    command = [sys.executable, "-m", "rankcall", "run", "--run-dir", str(run_dir), "--on-hang", "stop", *label.run_args]
    if label.form == "command":
        command += ["--", sys.executable, *label.target()]
    else:
        command += ["--nproc-per-node", str(label.nproc), *label.target()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RANKCALL_DEBUG": "1"}
    begin = time.monotonic()
    process = subprocess.Popen(command, cwd=label.working_folder, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")  # fmt: skip
    try:
        _, stderr = process.communicate(timeout=label.timeout + 30)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        _, stderr = process.communicate()
        code = None
    seconds = time.monotonic() - begin
    try:
        report = json.loads((run_dir / "report.json").read_text())
    except (OSError, ValueError):
        report = {}
    result = Result(label, report, code, seconds, stderr)
    result.wrong = list(_wrongs(result))
    return result


def _wrongs(result: Result) -> Iterable[str]:
    label = result.label
    if result.exit_code is None:
        yield "did not end"
    if not result.report:
        yield "no report"
        return
    if label.healthy:
        if result.exit_code != 0:
            yield f"exit code {result.exit_code}"
        if result.verdict is not None:
            yield f"false verdict {result.verdict['pitfall']}"
        for finding in result.report.get("findings", []):
            if finding["severity"] != "note":
                yield f"false finding {finding['pitfall']} ({finding['severity']})"
        return
    if "nothing" in label.said_as and not result.said:
        return
    if not result.said:
        yield "nothing said"
        return
    named = [one for one in result.said if one["pitfall"] in label.pitfalls]
    if not named:
        yield "pitfall " + ",".join(one["pitfall"] for one in result.said)
    best = named[0] if named else result.said[0]
    ranks = frozenset(best.get("culprits", best.get("ranks", ())))
    if label.culprits and ranks not in label.culprits:
        yield f"culprits {sorted(ranks)}"
    places = [*label.here, *label.also_here]
    if places and result.verdict is not None:
        where = result.verdict["where"]
        if where is None:
            yield "where null"
        elif not any(Path(where["file"]).name == p.file.name and where["line"] == p.line for p in places):
            yield f"where {Path(where['file']).name}:{where['line']}"


def chosen_jobs(names: list[str]) -> list[Label]:
    jobs = all_jobs()
    if not names:
        return jobs
    return [job for job in jobs if any(job.kind == name or name in job.name for name in names)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("-j", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    options = parser.parse_args()
    keep = options.keep or Path(tempfile.mkdtemp(prefix="rankcall-jobs-"))

    def one(label: Label) -> Result:
        folder = keep / label.name.replace("/", "--")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        result = run_job(label, folder)
        (folder / "stderr").write_text(result.stderr)
        print(line_of(result), flush=True)
        return result

    with ThreadPoolExecutor(options.j) as pool:
        results = list(pool.map(one, chosen_jobs(options.names)))
    if not options.keep:
        shutil.rmtree(keep, ignore_errors=True)
    print_summary(results)
    return 1 if any(result.wrong for result in results) else 0


def line_of(result: Result) -> str:
    said = result.verdict or (result.said[0] if result.said else {})
    ranks = said.get("culprits", said.get("ranks", []))
    where = said.get("where") or {}
    place = f"{Path(where['file']).name}:{where['line']}" if where else "-"
    found = said.get("detected_after_s")
    parts = [
        "ok   " if not result.wrong else "WRONG",
        f"{result.label.name:<48}",
        f"{said.get('pitfall', '-'):<24}",
        f"{ranks!s:<14}",
        f"{place:<28}",
        f"{result.report.get('outcome')!s:<9}",
        ("proven" if said.get("proven") else f"{said.get('confidence', 0):.2f}  "),
        f"{found:.1f}s" if found is not None else "-",
        f"({result.seconds:.0f} s)",
        "; ".join(result.wrong),
    ]
    return " ".join(parts)


def print_summary(results: list[Result]) -> None:
    faults = [result for result in results if not result.label.healthy]
    healthy = [result for result in results if result.label.healthy]

    def right(kind: str) -> int:
        amiss = (kind, "nothing", "no report", "did not")
        return sum(not any(wrong.startswith(amiss) for wrong in result.wrong) for result in faults)

    print(f"\nfaults {len(faults)}: pitfall {right('pitfall')}, culprits {right('culprits')}, where {right('where')}")
    print(f"healthy {len(healthy)}: quiet {sum(not result.wrong for result in healthy)}")
    times = [
        result.verdict["detected_after_s"]
        for result in faults
        if result.verdict and result.verdict["proven"] and result.report["outcome"] == "hung"
        if result.verdict.get("detected_after_s") is not None
    ]
    if times:
        print(f"proven hangs {len(times)}: found after {statistics.median(times):.2f} s (median), {max(times):.2f} s")


if __name__ == "__main__":
    sys.exit(main())
