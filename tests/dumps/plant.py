"""Plants one fault in a simulated job, or none, and knows what a diagnosis of its dumps has to say.

    planted = plant("missing", seed=7)
    planted.write(folder)
    planted.culprits, planted.where

The truth comes out of the simulation: a planting is only handed out if the job really stopped for it, and if the dumps
show it (see `plantings/shown.py`). Two ranks that contradict each other can be symmetric: nothing but the two of them
tells who is wrong. Then both are culprits, and `ambiguous` is set. That is so if the group has only two members, no
third rank runs the same program as the culprit and came as far, and the two rings do not hold a whole earlier step (or
the operation is not one of every step, or its size changes from step to step anyway).

A rank that skipped an operation and stands in another group's next one, where it waits for those who wait for it, looks
as if it had entered two groups in the other order, and the other way round, unless both operations are enqueued. Of an
inversion all ranks of the circle are the culprits, of a skip the one; where the dumps do not tell, `also` has the other
answer.

Not planted, because the dumps could not show it or torch would not hang:

- anything in a rank's first step: NCCL makes its communicators there, before the recorder sees the operation;
- a stuck rank whose own operations are not all done: on the device it would wait, too;
- with gloo: a pipeline (sends are not recorded), operations that do not fit together (gloo aborts), a rank without a
  dump (gloo's dumps do not tell who belongs to a group).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from .plantings import cycles, healthy, mismatches, missing, skips, transfers
from .plantings.planted import Planted

_MAKERS: dict[str, Callable[[random.Random], Planted | None]] = {
    "missing": missing.missing,
    "missing-no-dump": missing.missing_no_dump,
    "two-roots": missing.two_roots,
    "cycle": cycles.cycle,
    "shape-mismatch": mismatches.shape_mismatch,
    "swapped": mismatches.swapped,
    "skipped": skips.skipped,
    "skipped-before-ring": skips.skipped_before_ring,
    "unpaired-p2p": transfers.unpaired,
    "missing-some-dumps": missing.missing_some_dumps,
    "missing-stale-dump": missing.missing_stale_dump,
    "missing-unequal-rings": missing.missing_unequal_rings,
    "dtype-mismatch": mismatches.dtype_mismatch,
    "other-kind": mismatches.other_kind,
    "healthy-moment": healthy.healthy_moment,
    "healthy-end": healthy.healthy_end,
    "healthy-after-init": healthy.healthy_after_init,
    "healthy-empty-ring": healthy.healthy_empty_ring,
    "healthy-pipeline": healthy.healthy_pipeline,
    "healthy-reinit": healthy.healthy_reinit,
    "healthy-slow-rank": healthy.healthy_slow_rank,
}

KINDS = tuple(_MAKERS)
HEALTHY = tuple(kind for kind in KINDS if kind.startswith("healthy"))
FAULTS = tuple(kind for kind in KINDS if kind not in HEALTHY)


def plant(kind: str, seed: int) -> Planted:
    """The planting of that kind and seed, the same every time. Raises ValueError for a kind that does not exist."""
    if kind not in KINDS:
        raise ValueError(f"no planting is called {kind!r}; there are: {', '.join(KINDS)}")
    maker = _MAKERS[kind]
    rng = random.Random(f"{kind}/{seed}")
    for _ in range(400):
        planted = maker(rng)
        if planted is not None:
            return replace(planted, kind=kind, seed=seed)
    raise RuntimeError(f"no valid planting found for {kind}, seed {seed}")
