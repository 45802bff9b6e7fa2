"""A rank as the launcher started it: what launcher and watcher tell each other of it."""

from __future__ import annotations

import msgspec


class StartedRank(msgspec.Struct, frozen=True):
    """The process (perhaps a shell around the rank), rank and local rank."""

    pid: int
    rank: int
    local_rank: int | None = None
