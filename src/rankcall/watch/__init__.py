"""Watches the ranks of one machine from outside: reads their records, decides "stalled", takes the snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankcall.watch.live import LiveRun, live_runs
from rankcall.watch.started import StartedRank

if TYPE_CHECKING:
    from rankcall.watch.watcher import Watcher

__all__ = ["LiveRun", "StartedRank", "Watcher", "live_runs"]


def __getattr__(name: str) -> object:
    """The watcher brings the judge with it; who only reads records or looks for live runs does not pay for it."""
    if name == "Watcher":
        from rankcall.watch.watcher import Watcher

        return Watcher
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
