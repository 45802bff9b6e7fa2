"""Given this job, then this verdict: real torch jobs under `rankcall run`, one of each kind and some healthy ones.

RANKCALL_ALL_JOBS=1 (or `make jobs`) runs all of tests/jobs; `python tests/jobs/run.py NAME` shows one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "jobs"))

from labels import Label, all_jobs
from run import run_job

HEALTHY = (
    "plain", "join_uneven", "pipeline", "elastic_restart", "init_twice", "async_save", "subgroup_others_leave",
    "compiled_ddp", "async_never_waited", "long_evaluation",
)  # fmt: skip


def chosen() -> list[Label]:
    jobs = all_jobs()
    if os.environ.get("RANKCALL_ALL_JOBS"):
        return jobs
    first: dict[str, Label] = {}
    for job in jobs:
        if not job.healthy:
            first.setdefault(job.kind, job)
    healthy = [job for job in jobs if job.healthy and job.path.stem in HEALTHY]
    return [*first.values(), *healthy]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("label", chosen(), ids=lambda label: label.name)
def test_the_job_is_named_rightly(label: Label, tmp_path: Path) -> None:
    result = run_job(label, tmp_path)
    assert result.wrong == [], f"{result.said}\n{result.stderr[-4000:]}"
