"""The registry: every pitfall's name, its layer, and which verbs can see it. The texts are in `pages/`.

A name never changes its meaning, and never goes away: reports, rules and people's habits hold on to it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Layer = Literal[
    "environment", "launch", "communication", "data", "model",
    "evaluation", "storage", "memory", "hardware", "program",
]  # fmt: skip
Seer = Literal["lint", "preflight", "run", "triage", "plan"]

# One letter a verb keeps the table below readable; `run` stands for `why` too.
_SEERS: dict[str, Seer] = {"L": "lint", "P": "preflight", "R": "run", "T": "triage", "A": "plan"}

_SEEN: dict[Layer, dict[str, str]] = {
    "environment": {
        "version-mismatch": "PT",
        "driver-too-old": "PT",
        "library-conflict": "PT",
        "extension-abi-mismatch": "T",
        "code-or-data-mismatch": "P",
        "shm-too-small": "PRT",
        "limits-too-low": "PT",
        "backend-unavailable": "PT",
        "bad-topology-file": "PT",
        "clock-skew": "P",
        "cpu-oversubscribed": "PR",
        "fabric-manager-down": "PT",
    },
    "launch": {
        "port-in-use": "PRT",
        "missing-env-var": "PRT",
        "missing-rank": "PRT",
        "duplicate-rank": "PRT",
        "duplicate-gpu": "PRT",
        "world-size-mismatch": "PRT",
        "invalid-device-ordinal": "LPT",
        "visible-devices-conflict": "PT",
        "mixed-launchers": "LPRT",
        "rank-as-string": "L",
        "fixed-master-port": "L",
        "master-unreachable": "PRT",
        "stale-process": "PRT",
        "local-rank-argument": "LT",
        "remote-shell-failed": "T",
        "group-not-initialized": "LT",
        "no-init-timeout": "L",
    },
    "communication": {
        "wrong-interface": "PRT",
        "ports-blocked": "PT",
        "peer-transport-failure": "PT",
        "rdma-failure": "PT",
        "slow-transport": "PRT",
        "packet-loss": "PRT",
        "collective-mismatch": "RT",
        "shape-mismatch": "RT",
        "lone-collective": "LRT",
        "group-order-inversion": "LR",
        "unmatched-send-recv": "RT",
        "collective-in-flight-fault": "PT",
        "timeout-too-short": "RT",
        "group-not-destroyed": "LRT",
        "group-created-out-of-order": "LR",
        "async-not-awaited": "L",
        "partial-reduce-used": "L",
    },
    "data": {
        "uneven-steps": "LRT",
        "data-dependent-skip": "LRT",
        "no-distributed-sampler": "LR",
        "epoch-not-set": "LR",
        "sampler-wrong-rank": "LR",
        "sampler-seed-differs": "LR",
        "split-differs-by-rank": "LR",
        "sharded-twice": "LR",
        "stream-not-sharded": "LR",
        "epoch-not-restored": "LR",
        "steps-shifted": "R",
        "shuffle-with-sampler": "LT",
        "empty-shard": "RT",
        "loader-stalled": "RT",
        "loader-worker-died": "RT",
        "slow-preprocessing": "RT",
        "unbalanced-load": "R",
        "label-out-of-range": "T",
        "data-not-found": "T",
    },
    "model": {
        "unused-parameters": "LRT",
        "marked-ready-twice": "T",
        "wrapped-before-device": "LR",
        "moved-after-wrap": "LR",
        "wrapper-bypassed": "LR",
        "changed-after-wrap": "LR",
        "loaded-on-one-rank": "LR",
        "accumulation-out-of-sync": "LR",
        "gradients-reduced-twice": "LR",
        "optimizer-other-parameters": "LR",
        "optimizer-before-shard": "LR",
        "replicas-diverged": "R",
        "device-mismatch": "LRT",
        "device-not-set": "LR",
        "model-differs": "RT",
        "batchnorm-not-synced": "L",
        "nan-loss": "RT",
        "mixed-dtype": "T",
        "expert-unused": "T",
    },
    "evaluation": {
        "uneven-gather": "LRT",
        "averaged-metric": "L",
        "padded-duplicates": "LR",
        "evaluation-on-one-rank": "LR",
    },
    "storage": {
        "save-on-every-rank": "LR",
        "sharded-save-on-one-rank": "LRT",
        "load-on-one-device": "LT",
        "prefix-ignored": "LR",
        "read-before-written": "L",
        "slow-checkpoint": "RT",
        "disk-full": "PT",
        "storage-unreachable": "RT",
        "shared-file-race": "LT",
        "checkpoint-mismatch": "T",
    },
    "memory": {
        "gpu-out-of-memory": "RT",
        "gpu-memory-taken": "PT",
        "host-out-of-memory": "RT",
        "fragmentation": "RT",
        "does-not-fit": "A",
    },
    "hardware": {
        "gpu-fault": "PT",
        "link-fault": "PT",
        "slow-device": "PR",
        "illegal-memory-access": "T",
    },
    "program": {
        "program-error": "RT",
        "rank-left-early": "RT",
        "import-error": "RT",
        "crashed-by-signal": "RT",
        "process-frozen": "R",
        "process-stuck": "R",
        "process-spinning": "R",
        "straggler": "R",
        "compile-skew": "RT",
        "preempted": "T",
        "terminal-closed": "RT",
        "config-conflict": "AT",
    },
}


class Entry(NamedTuple):
    """What the registry knows of a pitfall without reading its page."""

    layer: Layer
    seen_by: tuple[Seer, ...]


REGISTRY: dict[str, Entry] = {
    name: Entry(layer, tuple(_SEERS[letter] for letter in letters))
    for layer, seen in _SEEN.items()
    for name, letters in seen.items()
}
