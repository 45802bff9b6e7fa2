"""Watches the ranks of one machine from outside: reads their records, decides "stalled", takes the snapshot."""

from rankcall.watch.live import LiveRun, live_runs
from rankcall.watch.watcher import StartedRank, Watcher

__all__ = ["LiveRun", "StartedRank", "Watcher", "live_runs"]
