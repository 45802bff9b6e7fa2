"""Reads the pages: small, strict Markdown files `<layer>/<name>.<language>.md` beside this one.

A page is a title and the sections below in this order. Their headings are data too (`headings.<language>`,
one a line), so a new language is a set of new files and no new code. `Example` and `Related` may be left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from rankcall.errors import RankcallError
from rankcall.pitfalls.registry import Entry, Layer, Seer

if TYPE_CHECKING:
    from pathlib import Path

SECTIONS = ("happens", "why", "tell", "fix", "example", "related", "sources")
OPTIONAL = frozenset({"example", "related"})

_FIRST_CJK = 0x2E80  # from here on scripts put no space where a line is broken


class Page(msgspec.Struct, frozen=True):
    """One pitfall, explained.

    `happens`, `why`, `tell` and `example` are Markdown, a paragraph a line; each item of `fix` stands alone,
    the likeliest first; `related` holds names; `lang` is the language the page is really in.
    """

    name: str
    layer: Layer
    title: str
    seen_by: tuple[Seer, ...]
    happens: str
    why: str
    tell: str
    fix: tuple[str, ...]
    example: str
    related: tuple[str, ...]
    sources: tuple[str, ...]
    lang: str


def read_page(name: str, entry: Entry, lang: str) -> Page:
    """A registered name's page in `lang`, or in English if there is none. RankcallError if it is broken."""
    for language in (language_of(lang), "en"):
        text = _read(f"{entry.layer}/{name}.{language}.md")
        if text is not None:
            return parse(text, name, entry, language)
    raise RankcallError(f"the page of {name!r} is missing from this installation; install rankcall again.")


def parse(text: str, name: str, entry: Entry, lang: str) -> Page:
    """A file's text as a Page. Raises RankcallError, naming page and line, where the format is not kept."""
    title, sections = _split(text, f"{name}.{lang}.md", headings(lang))
    return Page(
        name=name,
        layer=entry.layer,
        title=title,
        seen_by=entry.seen_by,
        happens=_text(sections["happens"]),
        why=_text(sections["why"]),
        tell=_text(sections["tell"]),
        fix=_items(sections["fix"], f"{name}.{lang}.md"),
        example=_text(sections["example"]),
        related=tuple(" ".join(sections["related"]).replace(",", " ").split()),
        sources=_items(sections["sources"], f"{name}.{lang}.md"),
        lang=lang,
    )


@lru_cache(maxsize=16)
def headings(lang: str = "en") -> dict[str, str]:
    """The headings of a page's sections in a language, by the field of Page they fill; English if unknown."""
    text = _read(f"headings.{language_of(lang)}")
    words = (text if text is not None else _read("headings.en") or "").split("\n")
    return dict(zip(SECTIONS, words, strict=False))


def language_of(tag: str) -> str:
    """The language of a tag such as `zh_CN.UTF-8` or `en-GB`, as file names carry it; `en` if it is none."""
    language = tag.replace("-", "_").partition("_")[0].partition(".")[0].lower()
    return language if language.isascii() and language.isalpha() else "en"


def _read(path: str) -> str | None:
    file = _folder() / path
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _folder() -> Path:
    from pathlib import Path  # costs more than the rest of this module's import

    return Path(__file__).parent


def _split(text: str, file: str, words: dict[str, str]) -> tuple[str, dict[str, list[str]]]:
    """The title, and the lines of each section. Fenced code is never taken for a heading."""
    field_of = {word: field for field, word in words.items()}
    lines = text.splitlines()
    if not lines or not lines[0].startswith("# "):
        raise RankcallError(f"{file}:1: a page starts with '# ' and its title.")
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    fenced = False
    for number, line in enumerate(lines[1:], start=2):
        fenced ^= line.startswith("```")
        if not fenced and line.startswith("#"):
            field = field_of.get(line.removeprefix("## "))
            if field is None or field in sections or _out_of_order(field, sections):
                raise RankcallError(f"{file}:{number}: {line!r} is no heading of a page, or stands in the wrong place.")
            current = sections[field] = []
        elif sections:
            current.append(line.rstrip())
        elif line.strip():
            raise RankcallError(f"{file}:{number}: text before the first heading.")
    missing = [field for field in SECTIONS if field not in OPTIONAL and not any(sections.get(field, ()))]
    if missing or fenced:
        trouble = "a code block is not closed" if fenced else f"no text for {', '.join(missing)}"
        raise RankcallError(f"{file}: {trouble}.")
    return lines[0].removeprefix("# ").strip(), {field: sections.get(field, []) for field in SECTIONS}


def _out_of_order(field: str, sections: dict[str, list[str]]) -> bool:
    return any(SECTIONS.index(earlier) > SECTIONS.index(field) for earlier in sections)


def _items(lines: list[str], file: str) -> tuple[str, ...]:
    """The items of a list; a line that continues one is indented by two spaces."""
    items: list[list[str]] = []
    for line in lines:
        if line.startswith("- "):
            items.append([line[2:]])
        elif items and line.startswith("  "):
            items[-1].append(line)
        elif line:
            raise RankcallError(f"{file}: {line!r} is neither a list item ('- ') nor its continuation.")
    return tuple(_joined(item) for item in items)


def _text(lines: list[str]) -> str:
    """Markdown with each paragraph and list item on one line, code blocks as they are."""
    return "\n".join(_unwrapped(lines)).strip("\n")


def _unwrapped(lines: list[str]) -> Iterator[str]:
    fenced = False
    paragraph: list[str] = []
    for line in lines:
        fence = line.startswith("```")
        if paragraph and (fenced or fence or not line or line.startswith("- ")):
            yield _joined(paragraph)
            paragraph = []
        if fenced or fence or not line:
            fenced ^= fence
            yield line
        else:
            paragraph.append(line)
    if paragraph:
        yield _joined(paragraph)


def _joined(lines: list[str]) -> str:
    joined = ""
    for line in (line.strip() for line in lines):
        spaced = joined and line and ord(joined[-1]) < _FIRST_CJK and ord(line[0]) < _FIRST_CJK
        joined += f" {line}" if spaced else line
    return joined
