"""A Report as one screen of text for a person: the answer first, then where, why, what to do, who is where."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rankcall.findings import Finding, Report, Verdict
from rankcall.render import plain
from rankcall.render.code_parts import draw_stacks, draw_where
from rankcall.render.page import (
    WIDTH_WITHOUT_TERMINAL,
    Detail,
    Page,
    console_for,
    current_folder,
    screen_width,
    text_of,
    wants_color,
    write,
)
from rankcall.render.roll_call import where_text
from rankcall.render.roll_table import draw_roll_call
from rankcall.render.source_lines import SourceLines
from rankcall.render.stack_tree import draw_stack_tree
from rankcall.render.words import Language, Words

# How much of each part fits on one screen; -v lifts these.
MOST_FIXES = 4
MOST_RIVALS = 3
MOST_FINDINGS = 5

_SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_LOUDEST_FIRST = {"error": 0, "warning": 1, "note": 2}


def print_report(
    report: Report,
    *,
    console_file: TextIO | None = None,
    color: bool | None = None,
    lang: Language = "en",
    detail: Detail = "normal",
    sources: Mapping[str, str] | None = None,
) -> None:
    """Print to `console_file` (standard output), in colour if that is a terminal and nothing forbids it.

    An empty line comes first, since the job's own output stands above it. `sources` maps paths to the texts that
    ran; without it, lines are read from files that are unchanged.
    """
    file = sys.stdout if console_file is None else console_file
    text = render_report(
        report,
        width=screen_width(file),
        color=wants_color(file) if color is None else color,
        lang=lang,
        detail=detail,
        sources=sources,
        base=current_folder(),
    )
    write(text if detail == "quiet" else f"\n{text}", file)


def print_roll_call(
    report: Report, *, console_file: TextIO | None = None, color: bool | None = None, lang: Language = "en"
) -> None:
    """Print who is where, without any verdict: what Ctrl-C shows."""
    file = sys.stdout if console_file is None else console_file
    page = Page(screen_width(file), Words(lang), "normal", SourceLines(), current_folder())
    console = console_for(page.width, wants_color(file) if color is None else color)
    draw_roll_call(console, page, report)
    write(text_of(console), file)


def render_report(
    report: Report,
    *,
    width: int = WIDTH_WITHOUT_TERMINAL,
    color: bool = False,
    lang: Language = "en",
    detail: Detail = "normal",
    sources: Mapping[str, str] | None = None,
    base: str = "",
) -> str:
    """The whole screen as a string, with ANSI colours if `color`; paths are shown from the folder `base`."""
    page = Page(width, Words(lang), detail, SourceLines(sources), base)
    console = console_for(width, color)
    draw(console, page, report)
    return text_of(console)


def draw(console: Console, page: Page, report: Report) -> None:
    """Draw every part of the report."""
    _headline(console, page, report)
    if page.detail == "quiet":
        return
    verdict = report.verdict
    if verdict is not None:
        draw_where(console, page, verdict.where)
        draw_stacks(console, page, report, verdict)
        _section(console, page.words("why"), _indented(verdict.why))
        _fixes(console, page, verdict)
        _rivals(console, page, verdict)
    _findings(console, page, report.findings)
    _incidents(console, page, report)
    _unreadable(console, page, report)
    if "stacks" in report.data:
        draw_stack_tree(console, page, report.data["stacks"])
    if verdict is not None or report.outcome != "completed" or page.verbose:
        draw_roll_call(console, page, report)
    if page.verbose:
        _evidence(console, page, report)
    _closing(console, page, report)


def _prose(text: str, style: str = "") -> Text:
    return Text(plain.paragraph(text), style)


def _indented(text: str) -> Padding | None:
    return Padding(_prose(text), (0, 0, 0, 2)) if text else None


def _section(console: Console, title: str, body: Padding | Table | None) -> None:
    if body is not None:
        console.print()
        console.print(Text(title, "bold"))
        console.print(body)


def _marked(items: Iterable[tuple[str, Text]]) -> Table | None:
    """A list whose items hang behind their marks; None if it is empty."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for mark, text in items:
        grid.add_row(Text(f"  {mark}"), text)
    return grid if grid.row_count else None


def _headline(console: Console, page: Page, report: Report) -> None:
    words, verdict = page.words, report.verdict
    if verdict is None:
        console.print(Text(_without_verdict(words, report), "bold"))
        return
    console.print(_prose(verdict.sentence or verdict.title, "bold red"))
    if page.detail == "quiet":
        return
    name = Text(plain.line(verdict.pitfall), "bold")
    name.append(f": {plain.line(verdict.title)}" if verdict.title else "", "not bold")
    console.print(name)
    facts = [] if report.outcome is None else [words(f"outcome.{report.outcome}")]
    facts.append(words("proven" if verdict.proven else "not-proven"))
    facts.append(words("sure", percent=_percent(verdict.confidence)))
    if verdict.detected_after_s is not None:
        facts.append(words("detected", duration=plain.duration(verdict.detected_after_s)))
    console.print(Text(words("facts.between").join(facts), "dim"))


def _percent(confidence: float) -> int:
    return round(max(0.0, min(confidence, 1.0)) * 100)


def _without_verdict(words: Words, report: Report) -> str:
    if report.outcome == "completed":
        return words("completed", size=_job_size(words, report))
    # What is known all the same, and the command that would tell.
    known = report.data.get("unknown")
    told = isinstance(known, str) and bool(known)
    said = words(f"no-verdict.{report.outcome or 'known'}" if report.outcome or told else "no-verdict")
    return f"{said}{'.' if report.outcome else ':'} {plain.line(str(known))}" if told else said


def _job_size(words: Words, report: Report) -> str:
    """`4 ranks, 20 steps`; the steps are left out where nobody counted any."""
    world_size = report.job.world_size if report.job is not None else None
    ranks = words.ranks(world_size if world_size is not None else len(report.ranks))
    steps = max((row.step for row in report.ranks if row.step is not None), default=0)
    return words("completed.steps", ranks=ranks, steps=steps) if steps else ranks


def _fixes(console: Console, page: Page, verdict: Verdict) -> None:
    fixes = verdict.fix if page.verbose else verdict.fix[:MOST_FIXES]
    numbered = [(f"{number}.", _prose(fix)) for number, fix in enumerate(fixes, 1)]
    _section(console, page.words("fix"), _marked(numbered))


def _rivals(console: Console, page: Page, verdict: Verdict) -> None:
    items = []
    for rival in verdict.rivals if page.verbose else verdict.rivals[:MOST_RIVALS]:
        text = Text()
        text.append(plain.line(rival.pitfall), "bold")
        text.append(f" ({_percent(rival.confidence)} %): {plain.paragraph(rival.tell_apart)}")
        items.append(("-", text))
    _section(console, page.words("rivals"), _marked(items))


def _findings(console: Console, page: Page, findings: Sequence[Finding]) -> None:
    loudest_first = sorted(findings, key=lambda finding: _LOUDEST_FIRST[finding.severity])
    items = []
    for finding in loudest_first if page.verbose else loudest_first[:MOST_FINDINGS]:
        text = Text()
        text.append(page.words(finding.severity), _SEVERITY_STYLES[finding.severity])
        text.append(f" {plain.line(finding.pitfall)}: {plain.paragraph(finding.message)}")
        place = where_text(finding.where, page.base)
        text.append(f" ({place})" if place else "")
        items.append(("-", text))
    left_out = len(findings) - len(items)
    if left_out:
        items.append(("-", Text(page.words("findings.more", count=left_out), "dim")))
    _section(console, page.words("findings"), _marked(items))


def _incidents(console: Console, page: Page, report: Report) -> None:
    """Verdicts that were taken back, or that another one replaced."""
    final = report.verdict
    items = []
    for incident in report.incidents if page.verbose else report.incidents[-MOST_FINDINGS:]:
        if incident.withdrawn_at is None and final is not None and _same(incident.verdict, final):
            continue
        text = _prose(incident.verdict.sentence or incident.verdict.title)
        if incident.withdrawn_at is not None:
            after = plain.duration(incident.withdrawn_at - incident.at)
            text.append(f" ({page.words('incident.withdrawn', duration=after)})", "dim")
        items.append(("-", text))
    _section(console, page.words("incidents"), _marked(items))


def _unreadable(console: Console, page: Page, report: Report) -> None:
    """Files that gave nothing, and what had to be guessed about the others."""
    items = []
    files = report.data.get("unreadable")
    known = [one for one in files if isinstance(one, dict)] if isinstance(files, list) else []
    for one in known if page.verbose else known[:MOST_FINDINGS]:
        name, reason = str(one.get("file", "")), str(one.get("reason", ""))
        items.append(("-", _prose(f"{page.words('unreadable')}: {plain.short_path(name, page.base)}: {reason}")))
    if len(known) > len(items):
        items.append(("-", Text(page.words("findings.more", count=len(known) - len(items)), "dim")))
    notes = report.data.get("notes")
    items += [("-", _prose(str(note))) for note in (notes if isinstance(notes, list) else [])[:MOST_FINDINGS]]
    _section(console, page.words("files"), _marked(items))


def _same(one: Verdict, other: Verdict) -> bool:
    """True for two verdicts on one thing, if in other words: they are said while it is so, and afterwards."""
    return (one.pitfall, one.culprits) == (other.pitfall, other.culprits)


def _evidence(console: Console, page: Page, report: Report) -> None:
    used = frozenset(report.verdict.evidence) if report.verdict is not None else frozenset()
    items = []
    for at, one in enumerate(report.evidence):
        who = "" if one.rank is None else f"rank {one.rank}, "
        text = Text()
        text.append(f"{who}{plain.line(one.source, 120)}: ", "bold" if at in used else "")
        text.append(plain.paragraph(one.text, 600))
        items.append((f"{at}.", text))
    _section(console, page.words("evidence"), _marked(items))


def _closing(console: Console, page: Page, report: Report) -> None:
    """Where the rest lies: the page that says more, and the run folder."""
    lines = []
    if report.verdict is not None:
        lines.append(page.words("explain", name=plain.line(report.verdict.pitfall)))
    run_dir = report.job.run_dir if report.job is not None else None
    if run_dir is not None and (report.verdict is not None or page.verbose):
        path = plain.short_path(run_dir, page.base).rstrip("/") + "/report.json"
        lines.append(page.words("report", path=plain.line(path)))
    if lines:
        console.print()
    for line in lines:
        console.print(Text(line, "dim", overflow="fold"))
