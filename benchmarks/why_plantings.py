"""Whether `rankcall why` names the right ranks in simulated jobs with one planted fault, or none.

    python benchmarks/why_plantings.py                     # 200 faults and 40 healthy jobs
    python benchmarks/why_plantings.py --kind skipped --count 50 --seed 1000
    python benchmarks/why_plantings.py --kind skipped --count 1 --seed 17 --keep /tmp/folder

Each job is run by the simulator in tests/dumps, which knows the truth, and written as dumps of the flight recorder. An
answer is right if it names the culprits, all of them and nobody else, and nobody where all is well. Where two ranks are
symmetric, both must be named, or the one that did it; some answers that the dumps do not refute are right, too, but not
"exact" (tests/dumps/plant.py says which). A line that is named must be the one that was planted, or one of those that
are not wrong (where a missing rank was last seen, say); naming none is right, too, and counted: "lines" is told / could
be told. Exit code 1 unless all are right.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from dumps.plant import FAULTS, HEALTHY, KINDS, Planted, plant  # noqa: E402
from rankcall.errors import RankcallError  # noqa: E402
from rankcall.findings import Report  # noqa: E402
from rankcall.why import explain_files  # noqa: E402


@dataclass
class Score:
    """How often one kind was judged rightly."""

    right: int = 0
    exact: int = 0
    wrong: list[str] = field(default_factory=list)
    lines_told: int = 0
    lines_known: int = 0
    seconds: float = 0.0


def judge(planted: Planted, report: Report) -> str | None:
    """What is wrong with the report, in words; None if nothing."""
    verdict = report.verdict
    if planted.healthy:
        return None if verdict is None else f"expected nothing, got {verdict.pitfall} on {_ranks(verdict.culprits)}"
    expected = _ranks(planted.culprits)
    if verdict is None:
        return f"expected {expected}, got no verdict"
    named = frozenset(verdict.culprits)
    if named != planted.culprits and named not in planted.also:
        return f"expected {expected}, got {_ranks(verdict.culprits)} ({verdict.pitfall})"
    if verdict.where is not None:
        place = (verdict.where.file, verdict.where.line)
        if place != planted.where and place not in planted.near:
            return f"{expected} is right ({verdict.pitfall}), but not {place[0]}:{place[1]}; planted: {planted.where}"
    return None


def _ranks(ranks: object) -> str:
    numbers = sorted(ranks)  # type: ignore[call-overload]
    return str(numbers) if len(numbers) <= 8 else f"[{', '.join(map(str, numbers[:8]))}, … {len(numbers)} ranks]"


def try_one(kind: str, seed: int, folder: Path, score: Score) -> None:
    planted = plant(kind, seed)
    planted.write(folder)
    begin = time.perf_counter()
    try:
        report = explain_files([folder])
    except RankcallError as error:
        complaint: str | None = f"refused: {error}"
    except Exception as error:  # a fault of rankcall itself is a wrong answer, and the others are still to be asked
        complaint = f"failed with {type(error).__name__}: {error}"
    else:
        complaint = judge(planted, report)
        if planted.where is not None:
            score.lines_known += 1
            verdict = report.verdict
            if verdict is not None and verdict.where is not None:
                score.lines_told += (verdict.where.file, verdict.where.line) == planted.where
    score.seconds += time.perf_counter() - begin
    if complaint is None:
        verdict = report.verdict
        score.right += 1
        score.exact += planted.healthy or (verdict is not None and frozenset(verdict.culprits) == planted.culprits)
    else:
        about = f"{planted.simulation.backend}, {planted.form.version} {planted.form.container}, {planted.world} ranks"
        score.wrong.append(f"{kind} --seed {seed} ({about}): {complaint}\n      planted: {planted.description}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the first seed of each kind")
    parser.add_argument("--count", type=int, default=200, help="faults, dealt out to the kinds (with --kind: of each)")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; may be given several times")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the dumps there and leave them")
    options = parser.parse_args()

    wanted: list[tuple[str, int]] = []
    if options.kind:
        wanted = [(kind, options.seed + number) for kind in options.kind for number in range(options.count)]
    else:
        for kinds, count in ((FAULTS, options.count), (HEALTHY, max(3 * len(HEALTHY), options.count // 5))):
            wanted += [(kinds[number % len(kinds)], options.seed + number // len(kinds)) for number in range(count)]

    scores: dict[str, Score] = {}
    base = options.keep or Path(tempfile.mkdtemp(prefix="rankcall-plantings-"))
    try:
        for number, (kind, seed) in enumerate(wanted):
            folder = base / f"{kind}-{seed}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            try_one(kind, seed, folder, scores.setdefault(kind, Score()))
            if options.keep is None:
                shutil.rmtree(folder)
            if sys.stderr.isatty():
                print(f"\r{number + 1}/{len(wanted)}", end="", file=sys.stderr, flush=True)
    finally:
        if options.keep is None:
            shutil.rmtree(base, ignore_errors=True)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)

    print(f"{'kind':<24} {'right':>6} {'exact':>6} {'wrong':>6} {'lines':>8} {'ms each':>8}")
    for kind in KINDS:
        if kind in scores:
            score = scores[kind]
            asked = score.right + len(score.wrong)
            lines = f"{score.lines_told}/{score.lines_known}" if score.lines_known else "-"
            counts = f"{score.right:>6} {score.exact:>6} {len(score.wrong):>6}"
            print(f"{kind:<24} {counts} {lines:>8} {1000 * score.seconds / asked:>8.0f}")
    wrong = [text for score in scores.values() for text in score.wrong]
    right, exact = sum(each.right for each in scores.values()), sum(each.exact for each in scores.values())
    print(f"{'all':<24} {right:>6} {exact:>6} {len(wrong):>6}")
    for text in wrong:
        print(f"  {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
