"""Compares what `why` says of a folder of dumps with what has to be said."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rankcall.errors import RankcallError
from rankcall.findings import Report
from rankcall.why import explain_files

from .scenario import FORMS, STACKS, Look, Scenario, View

_HARNESS = ("scenario.py", "in_rank.py")  # a rank whose scenario is over stands there

Place = tuple[str, int]  # file name, line


@dataclass(frozen=True)
class Answer:
    """What was said of one view of one look, and what is wrong with it (empty: all right)."""

    scenario: Scenario
    look: Look
    view: View
    report: Report | None
    refused: str
    wrong: tuple[str, ...]

    @property
    def line(self) -> str:
        """One row of the table."""
        verdict = self.report.verdict if self.report is not None else None
        parts = [
            "ok   " if not self.wrong else "WRONG",
            f"{self.scenario.name:<34} {self.look.name:<9} {self.view:<18}",
        ]
        if verdict is None:
            parts.append(f"- {self.refused}" if self.refused else "-")
        else:
            place = f"{Path(verdict.where.file).name}:{verdict.where.line}" if verdict.where is not None else "-"
            sure = "proven" if verdict.proven else "      "
            parts.append(
                f"{verdict.pitfall:<22} {list(verdict.culprits)!s:<10} {verdict.confidence:.2f} {sure} {place}"
            )
        return " ".join([*parts, "; ".join(self.wrong)]).rstrip()


def answers(scenario: Scenario, folder: Path) -> Iterator[Answer]:
    """The answers to what was written, in every view of it."""
    found = [look for look in scenario.looks if (folder / look.name).is_dir()]
    for look in found:
        dumps = folder / look.name
        for form in FORMS:
            yield _answer(scenario, look, form, [dumps / form])
        yield _answer(scenario, look, "everything", [dumps])
        if not look.moment:  # copies and stacks do not tell that the job was running
            with tempfile.TemporaryDirectory(prefix="rankcall-copied-") as copied:
                yield _answer(scenario, look, "copied", [_copy(dumps / "json", Path(copied))])
            # After an exception a rank stands in its handler, and stacks say nothing about what it waited in.
            for view in STACKS if found[0].name != "error" else ():
                if (dumps / view).is_dir() and any((dumps / view).iterdir()):
                    yield _answer(scenario, look, view, [dumps / view])
    if len(found) > 1:
        yield _answer(scenario, found[-1], "generations", [folder / look.name / "pickle" for look in found])


def _copy(dumps: Path, to: Path) -> Path:
    """The same files in another folder, a day after they were written."""
    for file in sorted(dumps.iterdir()):
        copied = to / file.name
        shutil.copyfile(file, copied)
        later = file.stat().st_mtime + 86_400
        os.utime(copied, (later, later))
    return to


def _answer(scenario: Scenario, look: Look, view: View, dumps: list[Path]) -> Answer:
    try:
        report = explain_files(dumps, world_size=scenario.world_size)
    except RankcallError as error:
        return Answer(scenario, look, view, None, str(error), ("could not be read",))
    return Answer(scenario, look, view, report, "", tuple(_wrongs(scenario, look, view, report)))


def _wrongs(scenario: Scenario, look: Look, view: View, report: Report) -> Iterator[str]:
    expected, verdict = look.expected(view), report.verdict
    if verdict is None:
        if not expected.silent:
            yield "nothing said"
        if report.exit_code:
            yield f"exit code {report.exit_code} without a verdict"
        waiting = [row.rank for row in report.ranks if row.state == "waiting"]
        if scenario.healthy and waiting and not look.moment:
            yield f"ranks {waiting} are said to wait, and have finished"
        return
    if not expected.pitfalls:
        yield "false verdict"
        return
    expected = expected.fitting(verdict.pitfall)
    if verdict.pitfall not in expected.pitfalls and view not in STACKS:
        yield f"pitfall is none of {', '.join(expected.pitfalls)}"
    named, acceptable = frozenset(verdict.culprits), expected.culprits
    # In stacks alone a rank that has finished looks like one that is held up.
    if acceptable and not any(named == ranks or (view in STACKS and named > ranks) for ranks in acceptable):
        yield f"culprits are none of {[sorted(ranks) for ranks in acceptable]}"
    if verdict.confidence > expected.unsure:
        yield f"too sure, at most {expected.unsure}"
    where = verdict.where
    place = (Path(where.file).name, where.line) if where is not None else None
    yield from _misplaced(place, scenario.places, look, view)


def _misplaced(place: Place | None, right: tuple[Place, ...], look: Look, view: View) -> Iterator[str]:
    if view not in ("pickle-with-stacks", "everything", *STACKS):
        if place is not None:
            yield "a place without stacks"
        return
    if not right or place in right or (place is not None and place[0] in _HARNESS):
        return
    if place is not None or look.placed:
        yield "place is none of " + ", ".join(f"{name}:{line}" for name, line in right)
