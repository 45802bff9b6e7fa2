"""Given what a real gloo job left behind, then `why` says what held it up, and nothing of a job that was well.

`python tests/dumps/real/run.py` runs all scenarios; RANKCALL_ALL_JOBS=1 has them tested here.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from .real.job import RealJob, run_scenario
from .real.judge import answers
from .real.scenario import Scenario, all_scenarios

FAST = ("late.sleeps", "groups.mesh_2x2", "parted.skips_one_of_two_lines", "healthy.one_rank_is_slow")


def chosen() -> list[Scenario]:
    known = all_scenarios()
    return list(known.values()) if os.environ.get("RANKCALL_ALL_JOBS") else [known[name] for name in FAST]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("scenario", chosen(), ids=lambda scenario: scenario.name)
def test_what_the_job_left_is_explained(scenario: Scenario, tmp_path: Path) -> None:
    run_scenario(scenario, tmp_path / "job")
    found = list(answers(scenario, tmp_path / "job"))
    assert found
    assert [answer.line for answer in found if answer.wrong] == []


def test_nothing_of_a_job_is_left_running(tmp_path: Path) -> None:
    with RealJob(all_scenarios()["late.loader_worker_sleeps"], tmp_path / "job") as job:
        started = [psutil.Process(process.pid) for process in job.ranks]
        job.until_begun()
    assert not any(process.is_running() for process in started)
