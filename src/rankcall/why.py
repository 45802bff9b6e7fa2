"""`rankcall why`: find the evidence of a run, have it judged, print the verdict. It judges nothing itself."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from rankcall.errors import RankcallError
from rankcall.findings import Report
from rankcall.render.output import Target
from rankcall.render.page import Detail, current_folder
from rankcall.render.plain import line
from rankcall.render.progress import Progress
from rankcall.render.words import Language
from rankcall.snapshot import Snapshot

Format = Literal["terminal", "json", "svg", "perfetto"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the answer is wanted."""

    format: Format = "terminal"
    lang: Language = "en"
    detail: Detail = "normal"
    world_size: int | None = None
    save_snapshot: Path | None = None


def answer(paths: Sequence[Path], wanted: Wanted, target: Target) -> int:
    """Print the verdict on one recorded run, on what any job left behind, or on the job now running here.

    Returns the exit code. Raises RankcallError for anything that cannot be read.
    """
    report: Report
    snapshot: Snapshot | None
    if not paths:
        report, snapshot = _running()
    elif len(paths) == 1 and _is_recorded(paths[0]):
        report, snapshot = _recorded(paths[0])
    elif len(paths) > 1 and (runs := [path for path in paths if _is_folder(path) and _is_recorded(path)]):
        raise RankcallError(f"why reads one run at a time, or dumps and stacks; {len(paths)} paths were named, and "
                            f"{runs[0]} is a run of rankcall's.")  # fmt: skip
    else:
        report, snapshot = _left(paths, wanted, Progress())
    if wanted.save_snapshot is not None:
        _save(snapshot, wanted.save_snapshot)
    target.put(_rendered(report, snapshot, wanted, target))
    return report.exit_code


def _save(snapshot: Snapshot | None, path: Path) -> None:
    from rankcall.snapshot import snapshot_to_json

    if snapshot is None:
        raise RankcallError("there is no snapshot to save: a report alone was read.")
    try:
        path.write_bytes(snapshot_to_json(snapshot))
    except OSError as error:
        raise RankcallError(f"{path} cannot be written: {error.strerror or error}.") from error


def explain_files(
    paths: Sequence[Path], *, world_size: int | None = None, progress: Callable[[int, int], None] | None = None
) -> Report:
    """The report on what a job left behind: flight-recorder dumps and stacks, files or folders, from any launcher.

    For other tools to call: prints nothing, needs no torch, and reads every file as untrusted data, in processes of
    its own that are gone when it returns. `world_size` is the number of ranks where the files do not say it;
    `progress(done, all)` is called for each file. Raises RankcallError when nothing could be read.
    """
    return _of_files(paths, world_size=world_size, progress=progress)[0]


def _of_files(
    paths: Sequence[Path],
    *,
    world_size: int | None = None,
    whole_rings: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Report, Snapshot]:
    from rankcall.diagnose.readers.left_files import read_left_files

    with _no_collections():
        left = read_left_files(paths, world_size=world_size, whole_rings=whole_rings, progress=progress)
        report = _judged(left.snapshot, None)
    if left.unreadable:
        data = {"unreadable": [{"file": name, "reason": reason} for name, reason in left.unreadable], **report.data}
        report = msgspec.structs.replace(report, data=data)
    return report, left.snapshot


def _with_what_was_left(report: Report, snapshot: Snapshot) -> Report:
    """What only files tell: the merged stacks, and what had to be guessed."""
    from rankcall.diagnose.stack_tree import merge_stacks, rank_stacks

    data = dict(report.data)
    stacks = rank_stacks(snapshot)
    if stacks:
        data["stacks"] = merge_stacks(stacks, snapshot.sources)
    if snapshot.notes:
        data["notes"] = list(snapshot.notes)
    return msgspec.structs.replace(report, data=data)


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Millions of small objects, none of them garbage: looking for cycles again and again would take half the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _left(paths: Sequence[Path], wanted: Wanted, progress: Progress) -> tuple[Report, Snapshot]:
    try:
        return _of_files(
            paths,
            world_size=wanted.world_size,
            whole_rings=wanted.format == "perfetto",
            progress=progress,
        )
    finally:
        progress.clear()


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _is_recorded(path: Path) -> bool:
    """A run folder of rankcall's, or one of its files."""
    from rankcall.diagnose.readers.run_folder import looks_recorded

    return looks_recorded(path)


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
    if snapshot.origin == "files":
        report = _with_what_was_left(report, snapshot)
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
    if wanted.format == "perfetto":
        from rankcall.render.perfetto import to_perfetto

        if snapshot is None:
            raise RankcallError("a report alone has no timeline; name the run's folder or its snapshot.json.")
        return to_perfetto(report, snapshot)
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
