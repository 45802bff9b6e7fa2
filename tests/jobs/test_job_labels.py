"""Every job of this folder carries a label that can be read and is an answer that rankcall could give."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from labels import Label, all_jobs, read_label

from rankcall.pitfalls import names

JOBS = all_jobs()


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_label_is_an_answer_that_could_be_given(job: Label) -> None:
    assert set(job.pitfalls) <= set(names())
    assert all(culprits for culprits in job.culprits)
    if not (job.form == "command" or job.pitfall == "missing-rank"):
        assert max((rank for one in job.culprits for rank in one), default=0) < job.nproc
    for place in (*job.here, *job.also_here):
        assert place.file.exists()
    ast.parse(job.path.read_text(encoding="utf-8"))


def test_a_job_imports_nothing_of_rankcall() -> None:
    for job in JOBS:
        assert "rankcall" not in job.path.read_text(encoding="utf-8").replace("rankcall run", "")


def test_every_kind_has_several_variants() -> None:
    few = {kind: count for kind, count in Counter(job.kind for job in JOBS).items() if count < 2}
    assert not few


def test_a_part_of_a_job_is_no_job(tmp_path: Path) -> None:
    part = tmp_path / "_part.py"
    part.write_text('"""Only a part."""\n')
    assert read_label(part) is None
