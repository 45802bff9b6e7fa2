"""`rankcall why`: find the evidence of a run, have it judged, print the verdict. It judges nothing itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from rankcall.errors import RankcallError
from rankcall.findings import Report
from rankcall.render.output import Target
from rankcall.render.page import Detail, current_folder
from rankcall.render.plain import line
from rankcall.render.words import Language
from rankcall.snapshot import Snapshot

Format = Literal["terminal", "json", "svg"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the answer is wanted."""

    format: Format = "terminal"
    lang: Language = "en"
    detail: Detail = "normal"


def answer(paths: Sequence[Path], wanted: Wanted, target: Target) -> int:
    """Print the verdict on one recorded run, or on the job now running here. Returns the exit code.

    Raises RankcallError for anything that cannot be read.
    """
    if len(paths) > 1:
        raise RankcallError(f"why reads one run at a time; {len(paths)} were named.")
    if paths:
        report, snapshot = _recorded(paths[0])
    else:
        report, snapshot = _running()
    target.put(_rendered(report, snapshot, wanted, target))
    return report.exit_code


def _recorded(path: Path) -> tuple[Report, Snapshot | None]:
    from rankcall.diagnose.readers.run_folder import read_recorded

    live = _live_snapshot_of(path)
    if live is not None:
        return _judged(live, None), live
    recorded = read_recorded(path)
    if recorded.snapshot is None:
        assert recorded.report is not None
        _note(f"{path}: a report without its snapshot; shown as it was written, not judged again.")
        return recorded.report, None
    report = _judged(recorded.snapshot, recorded.report)
    if report.job is not None and path.is_dir():
        # The folder may have come from another machine: what is said of it must hold here.
        report = msgspec.structs.replace(report, job=msgspec.structs.replace(report.job, run_dir=str(path.absolute())))
    return report, recorded.snapshot


def _live_snapshot_of(path: Path) -> Snapshot | None:
    """The state of a run that is still going on, asked by its folder."""
    from rankcall.diagnose.readers.run_folder import is_unfinished

    if not is_unfinished(path):
        return None
    from rankcall.watch import live_runs

    for run in live_runs():
        if run.run_dir is not None and Path(run.run_dir).resolve() == path.resolve():
            return run.snapshot()
    return None


def _running() -> tuple[Report, Snapshot]:
    from rankcall.watch import live_runs

    runs = sorted(live_runs(), key=lambda run: run.started_at or 0.0)
    if not runs:
        raise RankcallError(
            "no job started by rankcall is running on this machine; name a recorded run: rankcall why RUN_DIR."
        )
    newest = runs[-1]
    _note(f"asked the job in {newest.run_dir}  ({' '.join(newest.command)})")
    for other in runs[:-1]:
        _note(f"also running here: rankcall why {other.run_dir}  ({' '.join(other.command)})")
    snapshot = newest.snapshot()
    return _judged(snapshot, None), snapshot


def _judged(snapshot: Snapshot, written: Report | None) -> Report:
    """Judge the snapshot. What only the run itself could know is kept from the report `written` then."""
    from rankcall.diagnose import diagnose

    report = msgspec.structs.replace(diagnose(snapshot), verb="why")
    if written is None:
        return report
    report = msgspec.structs.replace(
        report,
        incidents=written.incidents,
        outcome=report.outcome if report.outcome is not None else written.outcome,
        job=report.job if report.job is not None else written.job,
    )
    now, then = report.verdict, written.verdict
    if now is not None and then is not None and now.pitfall == then.pitfall:
        # How fast it was found is a fact of that day; a snapshot taken at the end no longer shows it.
        verdict = msgspec.structs.replace(now, detected_after_s=then.detected_after_s)
        report = msgspec.structs.replace(report, verdict=verdict)
    elif (now and now.pitfall) != (then and then.pitfall):
        _note(f"rankcall {written.tool.version} said then: {then.sentence if then else 'no verdict'}")
    return report


def _rendered(report: Report, snapshot: Snapshot | None, wanted: Wanted, target: Target) -> str:
    sources = snapshot.sources if snapshot is not None else {}
    if wanted.format == "json":
        from rankcall.render.json import to_json

        return to_json(report)
    if wanted.format == "svg":
        from rankcall.render.svg import to_svg

        return to_svg(report, lang=wanted.lang, sources=sources, base=current_folder())
    from rankcall.render.terminal import render_report

    return render_report(
        report,
        width=target.width,
        color=target.colored,
        lang=wanted.lang,
        detail=wanted.detail,
        sources=sources,
        base=current_folder(),
    )


def _note(text: str) -> None:
    print(f"rankcall: {line(text)}", file=sys.stderr)
