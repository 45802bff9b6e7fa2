"""A scenario: what each rank of a small job does, and what has to be said of the dumps it leaves. Imports no torch."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

THEMES = ("late", "parted", "groups", "unseen", "ended", "healthy")
_MARK = re.compile(r"#\s*<-\s*(?:here|also)\b")
_REGISTERED: dict[str, Scenario] = {}

Form = Literal["pickle-with-stacks", "pickle", "json"]
FORMS: tuple[Form, ...] = ("pickle-with-stacks", "pickle", "json")
# What is given to `why`: one form; all forms and the ranks' stacks; files that were copied a day later; those of all
# looks together; stacks alone.
View = Literal["pickle-with-stacks", "pickle", "json", "everything", "copied", "generations", "stacks", "py-spy"]
STACKS: tuple[View, ...] = ("stacks", "py-spy")


@dataclass(frozen=True)
class Expect:
    """The right answers. `pitfalls` and `culprits` are those that may be named, the best first; `silent`: to say
    nothing is right, too; `unsure`: no more than this confidence; `other`: another answer that is right as well.
    Without pitfalls only silence is right."""

    pitfalls: tuple[str, ...] = ()
    culprits: tuple[frozenset[int], ...] = ()
    silent: bool = False
    unsure: float = 1.0
    other: Expect | None = None

    def fitting(self, pitfall: str) -> Expect:
        """The one of these answers that speaks of this pitfall."""
        return self.other if self.other is not None and pitfall in self.other.pitfalls else self


@dataclass(frozen=True)
class Look:
    """A set of dumps that the runner has written, and what it shows.

    `seen` is the answer to dumps with stacks, `blind` (None: the same) to those without, `stacked` (None: `seen`) to
    dumps beside the ranks' own stacks. `apart`: seconds between the ranks' dumps; `stop`: ranks that are stopped before
    them, and so write none; `mute`: ranks that cannot answer. `placed`: a place has to be named where the dumps have
    stacks. `moment`: written while the job runs, at a random time. A look named `error` is what the ranks write
    themselves when an exception reaches them.
    """

    name: str
    seen: Expect
    blind: Expect | None = None
    stacked: Expect | None = None
    apart: float = 0.0
    stop: tuple[int, ...] = ()
    mute: tuple[int, ...] = ()
    placed: bool = True
    moment: bool = False

    def expected(self, view: View) -> Expect:
        if view == "everything":
            return self.stacked or self.seen
        if view in STACKS:  # they do not show what was called before, nor for how long it has stood still
            return replace(self.stacked or self.seen, silent=True, other=None)
        return self.seen if view == "pickle-with-stacks" or self.blind is None else self.blind


@dataclass(frozen=True)
class Scenario:
    """`run(job)` is called on every rank. `looks` are taken in their order when the ranks stand still; a `healthy` job
    ends well by itself. `settings`: environment variables of the ranks. `world_size` is told to `why`. `cold`: the
    first dump with stacks has to import a good part of torch first, and is written seconds after it was taken."""

    name: str
    theme: str
    run: Callable[[Job], None]
    ranks: int
    looks: tuple[Look, ...]
    healthy: bool
    cold: bool
    settings: dict[str, str]
    world_size: int | None
    places: tuple[tuple[str, int], ...]  # (file name, line) that may be named as where


def ranks_text(text: str) -> tuple[frozenset[int], ...]:
    """`2` or `0,1`, alternatives parted by `|`."""
    return tuple(frozenset(int(rank) for rank in one.split(",")) for one in text.split("|")) if text else ()


def expect(
    pitfalls: str = "", culprits: str = "", *, silent: bool = False, unsure: float = 1.0, other: Expect | None = None
) -> Expect:
    return Expect(tuple(pitfalls.split()), ranks_text(culprits), silent or not pitfalls, unsure, other)


NOTHING = Expect(silent=True)


def moments(expected: Expect = NOTHING, count: int = 3) -> tuple[Look, ...]:
    """Looks while the job runs."""
    return tuple(Look(f"moment-{at + 1}", expected, moment=True) for at in range(count))


def scenario(
    ranks: int,
    *looks: Look,
    healthy: bool = False,
    cold: bool = False,
    settings: dict[str, str] | None = None,
    world_size: int | None = None,
) -> Callable[[Callable[[Job], None]], Callable[[Job], None]]:
    """Register the function below; lines marked `# <- here` or `# <- also` are the places that may be named."""

    def registered(function: Callable[[Job], None]) -> Callable[[Job], None]:
        theme = function.__module__.rpartition(".")[2]
        name = f"{theme}.{function.__name__}"
        lines, first = inspect.getsourcelines(function)
        file = os.path.basename(inspect.getsourcefile(function) or "")
        marks = tuple((file, first + at) for at, line in enumerate(lines) if _MARK.search(line))
        _REGISTERED[name] = Scenario(
            name, theme, function, ranks, looks, healthy, cold, settings or {}, world_size, marks
        )  # fmt: skip
        return function

    return registered


def all_scenarios() -> dict[str, Scenario]:
    for theme in THEMES:
        importlib.import_module(f"{__package__}.scenarios.{theme}")
    return dict(_REGISTERED)


class Job:
    """What a scenario's function gets: who it is, and how it meets the others without a collective."""

    def __init__(self, rank: int, world: int, folder: Path) -> None:
        self.rank, self.world, self.folder = rank, world, folder

    def init(self, timeout_s: float = 600.0, **more: Any) -> None:
        """The default group, on gloo."""
        import torch.distributed as dist

        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s), **more)
        self.tell(f"begun-{self.rank}")

    def tell(self, name: str) -> None:
        (self.folder / "signs" / name).touch()

    def told(self, name: str) -> bool:
        return (self.folder / "signs" / name).exists()

    def wait_for(self, name: str) -> None:
        while not self.told(name):
            time.sleep(0.02)
