"""The demo, whole: real ranks, a real hang, the verdict, and the same verdict again from the run folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from cli_runs import command

from rankcall.findings import report_from_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]


def test_the_demo_names_the_rank_that_skipped_a_batch(tmp_path: Path) -> None:
    ended = command("demo", "--keep", str(tmp_path / "demo"))
    assert ended.code == 0, ended.err
    script = (tmp_path / "demo" / "train.py").read_text().split("\n")
    report = report_from_json((tmp_path / "demo" / "run" / "report.json").read_bytes())
    verdict = report.verdict
    assert verdict is not None
    assert verdict.culprits == (2,)
    assert verdict.where is not None
    assert "isfinite" in script[verdict.where.line - 1] or "continue" in script[verdict.where.line - 1]
    assert "What to do" in ended.err
    assert "rankcall explain data-dependent-skip" in ended.err
    assert "step   0  loss" in ended.out

    again = command("why", str(tmp_path / "demo" / "run"), "--format", "json")
    assert again.code == 1
    verdict_again = report_from_json(again.out.encode()).verdict
    assert verdict_again is not None
    assert (verdict_again.pitfall, verdict_again.culprits) == (verdict.pitfall, verdict.culprits)
    assert (verdict_again.where, verdict_again.sentence) == (verdict.where, verdict.sentence)
    assert verdict_again.detected_after_s == verdict.detected_after_s
    assert again.err == ""
