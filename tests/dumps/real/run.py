"""Runs real gloo jobs and says of each whether `why` explains what they left: python tests/dumps/real/run.py [NAME …].

`--again FOLDER` judges the folders of an earlier run with `--keep FOLDER` once more, without running anything.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from dumps.real.job import JobFailed, run_scenario
from dumps.real.judge import Answer, answers
from dumps.real.scenario import Scenario, all_scenarios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; none: all")
    parser.add_argument("-j", type=int, default=1, help="jobs at a time")
    parser.add_argument("-v", action="store_true", help="print the sentences, too")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which healthy jobs are looked at")
    parser.add_argument("--keep", type=Path, help="keep the folders of dumps here")
    parser.add_argument("--again", type=Path, help="judge what was kept here")
    options = parser.parse_args()
    chosen = [one for name, one in all_scenarios().items()
              if not options.names or any(part in name for part in options.names)]  # fmt: skip
    keep = options.again or options.keep or Path(tempfile.mkdtemp(prefix="rankcall-dumps-"))

    def one(scenario: Scenario) -> list[Answer] | None:
        folder = keep / scenario.name
        try:
            if options.again is None:
                run_scenario(scenario, folder, options.seed)
        except JobFailed as error:
            print(f"FAILED {error}", flush=True)
            return None
        found = list(answers(scenario, folder))
        print("\n".join(text for answer in found for text in _lines(answer, options.v)), flush=True)
        return found

    with ThreadPoolExecutor(options.j) as pool:
        results = list(pool.map(one, chosen))
    if keep not in (options.keep, options.again):
        shutil.rmtree(keep)
    given = [answer for result in results if result is not None for answer in result]
    wrong = sum(1 for answer in given if answer.wrong)
    failed = sum(1 for result in results if result is None)
    print(f"\n{len(results)} jobs, {failed} failed to run; {len(given)} answers, {wrong} wrong")
    return 1 if wrong or failed else 0


def _lines(answer: Answer, verbose: bool) -> list[str]:
    lines = [answer.line]
    verdict = answer.report.verdict if answer.report is not None else None
    if verbose and verdict is not None:
        lines += [f"      {verdict.sentence}", f"      {verdict.why}"]
    elif verbose and answer.report is not None and answer.report.data:
        lines.append(f"      {answer.report.data}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
