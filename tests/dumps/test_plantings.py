"""`explain_files` on simulated jobs with one planted fault, or none: a few of each kind. All 200 and more:
benchmarks/why_plantings.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankcall.why import explain_files

from .plant import FAULTS, HEALTHY, plant

SEEDS = (0, 1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", FAULTS)
def test_the_root_is_named_and_nobody_else(kind: str, seed: int, tmp_path: Path) -> None:
    planted = plant(kind, seed)
    planted.write(tmp_path)
    verdict = explain_files([tmp_path]).verdict
    assert verdict is not None, planted.description
    named = frozenset(verdict.culprits)
    assert named == planted.culprits or named in planted.also, (planted.description, verdict.sentence)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_job_has_no_verdict(kind: str, seed: int, tmp_path: Path) -> None:
    planted = plant(kind, seed)
    planted.write(tmp_path)
    report = explain_files([tmp_path])
    assert report.verdict is None, (planted.description, report.verdict)
    assert report.exit_code == 0
