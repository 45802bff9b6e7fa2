"""Diagnosis: a snapshot goes in, a report comes out. Pure functions; no torch, no files.

`roll` indexes the snapshot by rank, `waits` says what each rank waits in, `graph` who waits for whom, `parting`
where the ranks' event rings differ. `crash`, `start`, `hang`, `roots`, `p2p`, `mismatch` and `blame` judge; `judge`
asks them in order.
"""

from __future__ import annotations

from rankcall.diagnose.judge import diagnose

__all__ = ["diagnose"]
