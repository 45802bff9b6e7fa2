"""Watches the ranks of one machine from outside: reads their records, decides "stalled", takes the snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankcall.watch.live import LiveRun, live_runs

if TYPE_CHECKING:
    from rankcall.watch.watcher import StartedRank, Watcher

__all__ = ["LiveRun", "StartedRank", "Watcher", "live_runs"]


def __getattr__(name: str) -> object:
    """The watcher brings the judge with it; who only reads records or looks for live runs does not pay for it."""
    if name in ("StartedRank", "Watcher"):
        from rankcall.watch import watcher

        return getattr(watcher, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
