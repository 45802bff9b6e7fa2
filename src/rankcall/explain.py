"""`rankcall explain`: print one page of the pitfall catalogue, or the list of all names."""

from __future__ import annotations

from itertools import groupby
from typing import Literal

import msgspec

from rankcall.pitfalls import layer, names, page
from rankcall.render.output import Target
from rankcall.render.words import Language


def explain(name: str | None, format: Literal["terminal", "json"], lang: Language, target: Target) -> int:
    """Print the page of `name`, or without one the list. Raises RankcallError for an unknown name."""
    target.put(_list(format, lang, target) if name is None else _page(name, format, lang, target))
    return 0


def _page(name: str, format: Literal["terminal", "json"], lang: Language, target: Target) -> str:
    found = page(name.strip().lower().replace("_", "-"), lang)
    if format == "json":
        return _json(found)
    from rankcall.render.pitfall_page import render_page

    return render_page(found, width=target.width, color=target.colored)


def _list(format: Literal["terminal", "json"], lang: Language, target: Target) -> str:
    pages = [page(name, lang) for name in names()]
    if format == "json":
        return _json([{"name": one.name, "layer": one.layer, "title": one.title} for one in pages])
    from rankcall.render.pitfall_page import render_names

    by_layer = [
        (name, [(one.name, one.title) for one in group])
        for name, group in groupby(pages, key=lambda one: layer(one.name))
    ]
    return render_names(by_layer, width=target.width, color=target.colored)


def _json(document: object) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
