"""The parts of a report that show code: the place with the lines around it, and the culprit's stack."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from rankcall.findings import RankRow, Report, Verdict, Where
from rankcall.render import plain
from rankcall.render.columns import cell
from rankcall.render.page import Page, print_uncut
from rankcall.render.roll_call import where_text

LINES_AROUND = 3
MOST_FRAMES = 8


def draw_where(console: Console, page: Page, where: Where | None) -> None:
    """Draw the place and the lines around it, its own line marked."""
    if where is None:
        return
    title = Text(page.words("where"), "bold")
    title.append(f"  {where_text(where, page.base)}", "not bold cyan")
    if where.function:
        title.append(f" {page.words('in')} {plain.line(where.function, 80)}", "not bold")
    console.print()
    console.print(title)
    found = page.sources.around(where, LINES_AROUND)
    digits = len(str(max((number for number, _ in found), default=0)))
    for number, source in found:
        here = number == where.line
        text = f"  {'>' if here else ' '} {number:>{digits}} | {plain.code(source)}"
        print_uncut(console, page, text.rstrip(), "bold" if here else "dim")


def draw_stacks(console: Console, page: Page, report: Report, verdict: Verdict) -> None:
    """Draw the stack of the first culprit that has one; of all of them when everything is wanted."""
    rows = [row for row in report.ranks if row.rank in verdict.culprits and row.stack]
    for row in rows if page.verbose else rows[:1]:
        _stack(console, page, row)


def _stack(console: Console, page: Page, row: RankRow) -> None:
    frames = [frame for frame in row.stack if not _is_ours(frame)]
    shown = frames if page.verbose else _frames_on_screen(frames)
    places = [where_text(frame, page.base, 120) for frame in shown]
    room = min(max((len(place) for place in places), default=0), page.width // 2)
    console.print()
    console.print(Text(page.words("stack", rank=row.rank), "bold"))
    for frame, place in zip(shown, places, strict=True):
        user = not plain.is_library(frame.file)
        parts = [cell(place, room, "end"), plain.line(frame.function, 60)]
        parts += [plain.code(page.sources.at(frame)).strip()] if user else []
        text = f"  {'>' if user else ' '} {'  '.join(part for part in parts if part)}"
        print_uncut(console, page, text.rstrip(), "bold" if user else "dim")
    if len(shown) < len(frames):
        console.print(Text(f"    {page.words('stack.more', count=len(frames) - len(shown))}", "dim"))


def _is_ours(frame: Where) -> bool:
    """True for rankcall's own hooks: they stand on every stack and say nothing about the job."""
    return "/rankcall/record/" in frame.file


def _frames_on_screen(frames: list[Where]) -> list[Where]:
    """The innermost frames, and the user's own ones even if they are further out."""
    if len(frames) <= MOST_FRAMES:
        return frames
    user = [at for at, frame in enumerate(frames) if not plain.is_library(frame.file)][: MOST_FRAMES - 2]
    rest = [at for at in range(len(frames)) if at not in user][: MOST_FRAMES - len(user)]
    return [frames[at] for at in sorted({*user, *rest})]
