"""How a text is laid out and written: width, colour, language, detail, and streams of few characters."""

from __future__ import annotations

import io
import os
import shutil
from dataclasses import dataclass
from typing import Literal, TextIO

from rich.console import Console
from rich.text import Text

from rankcall.render.source_lines import SourceLines
from rankcall.render.words import Words

Detail = Literal["quiet", "normal", "verbose"]

# Without a terminal nobody tells how wide the reader's screen is.
WIDTH_WITHOUT_TERMINAL = 100
NARROWEST, WIDEST = 40, 160

# For outputs that know ASCII only.
_ASCII = str.maketrans({"…": "...", "·": "-", "–": "-", "—": "-", "’": "'", "“": '"', "”": '"', "×": "x"})


@dataclass(frozen=True, slots=True)
class Page:
    """One text to lay out: where it looks up its words and source lines, and how much it tells.

    `base` is the folder that paths are shown from.
    """

    width: int
    words: Words
    detail: Detail
    sources: SourceLines
    base: str

    @property
    def verbose(self) -> bool:
        return self.detail == "verbose"


def screen_width(file: TextIO) -> int:
    """The width to lay out for: the terminal's, or COLUMNS where that is set, else 100."""
    if not _is_terminal(file) and not os.environ.get("COLUMNS", "").isdecimal():
        return WIDTH_WITHOUT_TERMINAL
    columns = shutil.get_terminal_size((WIDTH_WITHOUT_TERMINAL, 24)).columns
    return max(NARROWEST, min(columns, WIDEST))


def wants_color(file: TextIO) -> bool:
    """True for a terminal, unless NO_COLOR is set or TERM is dumb."""
    return _is_terminal(file) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def current_folder() -> str:
    """The folder that paths are shown from, "" if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def console_for(width: int, color: bool) -> Console:
    """A console that draws into a string. Nothing in the text is read as markup, emoji names or numbers."""
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        no_color=not color,
        color_system="standard" if color else None,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
        _environ={},
    )


def text_of(console: Console) -> str:
    """What was drawn, without spaces at line ends: they make copied text and stored examples ragged."""
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip(" ") for line in console.file.getvalue().split("\n"))


def print_uncut(console: Console, page: Page, text: str, style: str) -> None:
    """Print one line that never wraps; what is too long for the screen is cut."""
    line = Text(text, style, no_wrap=True, overflow="ellipsis")
    line.truncate(page.width, overflow="ellipsis")
    console.print(line)


def write(text: str, file: TextIO) -> None:
    """Write text in whatever encoding the stream has; what it cannot hold is spelled out."""
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeError:
        text = text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    file.write(text)
    file.flush()


def _is_terminal(file: TextIO) -> bool:
    try:
        return file.isatty()
    except ValueError:  # a closed stream
        return False
