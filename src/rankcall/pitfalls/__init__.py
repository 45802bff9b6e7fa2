"""The catalogue of pitfalls: a page for each name, the one source of `explain`, verdicts, docs and SARIF.

Names, layers and who can see a pitfall come from `registry.py` at no cost; a page is read from its file when
it is asked for. Nothing here judges a job.
"""

from __future__ import annotations

from functools import lru_cache

from rankcall.errors import RankcallError
from rankcall.pitfalls.pages import Page, headings, read_page
from rankcall.pitfalls.registry import REGISTRY, Entry, Layer, Seer

__all__ = ["Layer", "Page", "Seer", "closest", "headings", "layer", "names", "page", "seen_by"]

_LONGEST_SHOWN = 60  # no name is half as long; what is longer is a mistake that need not fill the screen


def names() -> tuple[str, ...]:
    """Every pitfall's name, layer by layer, in the order of the registry."""
    return tuple(REGISTRY)


def layer(name: str) -> Layer:
    """The layer that `name` belongs to. Raises RankcallError for a name that nobody knows."""
    return _entry(name).layer


def seen_by(name: str) -> tuple[Seer, ...]:
    """The verbs that can see it; `run` stands for `why` too. Raises RankcallError as `layer` does."""
    return _entry(name).seen_by


@lru_cache(maxsize=256)
def page(name: str, lang: str = "en") -> Page:
    """The page of a pitfall, in English where it is not written in `lang` yet; `Page.lang` says which it is.

    Raises RankcallError for an unknown name, with the nearest known one.
    """
    entry = _entry(name)
    return read_page(name, entry, lang)


def closest(name: str) -> tuple[str, ...]:
    """Up to three known names that look like `name`, the likeliest first; for typing errors."""
    from difflib import get_close_matches  # 3 ms that only a wrong name has to pay

    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    alike = get_close_matches(wanted, REGISTRY, n=3, cutoff=0.6)
    speaking_of_it = [known for known in REGISTRY if wanted in known.split("-") and known not in alike]
    return tuple([*alike, *speaking_of_it][:3])


def _entry(name: str) -> Entry:
    entry = REGISTRY.get(name)
    if entry is not None:
        return entry
    alike = closest(name)
    advice = f"did you mean {alike[0]}?" if alike else "`rankcall explain` lists all names."
    shown = name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}…"
    raise RankcallError(f"no pitfall is called {shown!r}; {advice}")
