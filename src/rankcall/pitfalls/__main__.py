"""`python -m rankcall.pitfalls [LANGUAGE]` prints the catalogue's index as Markdown, for the docs."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rankcall.pitfalls import Page, names, page


def index(lang: str = "en") -> Iterator[str]:
    """The lines of the index: a table for each layer, a row for each pitfall, linked to its page."""
    yield "# Pitfalls"
    yield ""
    yield "`rankcall explain NAME` prints the page of a name. 'Seen by': the verbs that find it on their own."
    shown = ""
    for found in (page(name, lang) for name in names()):
        if found.layer != shown:
            shown = found.layer
            yield from ("", f"## {shown}", "", "| name | what it is | seen by |", "|---|---|---|")
        yield f"| [{found.name}]({_link(found)}) | {found.title} | {', '.join(found.seen_by)} |"


def _link(found: Page) -> str:
    return f"../src/rankcall/pitfalls/pages/{found.layer}/{found.name}.{found.lang}.md"


if __name__ == "__main__":
    print("\n".join(index(*sys.argv[1:2])))
