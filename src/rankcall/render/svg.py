"""A Report as a picture of a terminal: what README shows. It loads nothing from the network."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from rankcall.findings import Report
from rankcall.render.page import Page
from rankcall.render.source_lines import SourceLines
from rankcall.render.terminal import draw
from rankcall.render.words import Language, Words

_THEME = TerminalTheme(
    background=(24, 26, 31),
    foreground=(215, 218, 224),
    normal=[
        (24, 26, 31), (224, 108, 117), (152, 195, 121), (229, 192, 123),
        (97, 175, 239), (198, 120, 221), (86, 182, 194), (215, 218, 224),
    ],
)  # fmt: skip

# Rich's own frame fetches its font from a server; this one asks for any fixed-width font.
_FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; white-space: pre;
  font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix" xml:space="preserve">
{matrix}
</g>
</g>
</svg>
"""


# XML has no way to write these characters, not even escaped.
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_svg(
    report: Report,
    *,
    width: int = 100,
    lang: Language = "en",
    sources: Mapping[str, str] | None = None,
    base: str = "",
) -> str:
    """The terminal's text as an SVG document."""
    console = Console(
        file=io.StringIO(), width=width, record=True, force_terminal=True, color_system="standard",
        markup=False, emoji=False, highlight=False, _environ={},
    )  # fmt: skip
    draw(console, Page(width, Words(lang), "normal", SourceLines(sources), base), report)
    svg = console.export_svg(title=f"rankcall {report.verb}", theme=_THEME, code_format=_FRAME, unique_id="verdict")
    return _NOT_IN_XML.sub("\ufffd", svg)
