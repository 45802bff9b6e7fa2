"""What `rankcall why DUMPS` does beside naming the root: which files it reads, what it says of the others."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from rankcall.cli import main
from rankcall.errors import RankcallError
from rankcall.findings import Report
from rankcall.snapshot import snapshot_from_json
from rankcall.why import explain_files

from .hand import HandMade, stuck, world


def write(ranks: list[HandMade], folder: Path, name: str = "nccl_trace_rank_{rank}") -> Path:
    for rank in ranks:
        rank.write(folder, name)
    return folder


def culprits(report: Report) -> tuple[int, ...] | None:
    return report.verdict.culprits if report.verdict is not None else None


@pytest.mark.parametrize(
    "name",
    [
        "nccl_trace_rank_{rank}", "comm_lib_trace_rank_{rank}.json", "trace_{rank}", "{rank}.pkl", "rank{rank}.dump",
        "job-17_global_rank={rank}_of_4.pickle", "node{rank}/rank_{rank}", "rank_{rank}/dump.json", "rank-{rank}.trace",
    ],
)  # fmt: skip
def test_the_rank_is_in_the_name_of_the_file_or_its_folder(name: str, tmp_path: Path) -> None:
    for rank in stuck(4, missing=2):
        path = tmp_path / name.format(rank=rank.rank)
        rank.write(path.parent, path.name)
    assert culprits(explain_files([tmp_path])) == (2,)


def test_files_may_be_named_one_by_one(tmp_path: Path) -> None:
    paths = [rank.write(tmp_path) for rank in stuck(4, missing=1)]
    assert culprits(explain_files(paths)) == (1,)


def test_the_sentence_says_who_what_and_where(tmp_path: Path) -> None:
    verdict = explain_files([write(stuck(4, missing=2), tmp_path)]).verdict
    assert verdict is not None
    assert verdict.sentence.startswith("rank 2 did not come to all_reduce number 6 of the default group at train.py:20")
    assert verdict.where is not None
    assert (verdict.where.file, verdict.where.line) == ("/home/ada/train.py", 10)  # where it was last seen
    assert verdict.waiting == (0, 1, 3)


def test_ranks_in_the_groups_win_over_numbers_in_the_names(tmp_path: Path) -> None:
    """Two nodes that number their files by local rank: the groups show which rank each one is."""
    for node in (0, 1):
        for local in (0, 1):
            rank = 2 * node + local
            made = HandMade(rank).group("0", range(4), "default_pg").group("1", [2 * node, 2 * node + 1], "tensor")
            made.group("2", [local, local + 2], "data")
            made.call(group="1").call(group="2").call(group="0")
            if rank != 3:
                made.call(group="0", at=1, done=False)
            made.write(tmp_path / f"node{node}", f"trace_{local}")
    report = explain_files([tmp_path])
    assert culprits(report) == (3,)
    assert any("another number" in note for note in report.data["notes"])  # type: ignore[union-attr]


def test_a_rank_without_a_dump_is_the_suspect(tmp_path: Path) -> None:
    ranks = world(4)
    for rank in ranks:
        rank.call().call(at=1, done=False)
    write([rank for rank in ranks if rank.rank != 3], tmp_path)
    report = explain_files([tmp_path])
    assert culprits(report) == (3,)
    assert report.verdict is not None
    assert "left no dump" in report.verdict.sentence
    assert next(row for row in report.ranks if row.rank == 3).state == "missing"


@pytest.mark.parametrize("damage", [b"", b"\x80\x02}q", b"\x80\x02(", b"not a dump at all"])
def test_a_damaged_dump_is_named_and_its_rank_is_a_suspect(damage: bytes, tmp_path: Path) -> None:
    ranks = world(4)
    for rank in ranks:
        rank.call().call(at=1, done=False)
    write(ranks, tmp_path)
    (tmp_path / "nccl_trace_rank_1").write_bytes(damage)
    report = explain_files([tmp_path])
    assert culprits(report) == (1,)
    (bad,) = report.data["unreadable"]  # type: ignore[misc]
    assert bad["file"].endswith("nccl_trace_rank_1") and bad["reason"]  # type: ignore[index]


def test_a_known_root_explains_ranks_without_a_dump(tmp_path: Path) -> None:
    write([rank for rank in stuck(8, missing=2) if rank.rank != 5], tmp_path)
    assert culprits(explain_files([tmp_path])) == (2,)


def test_two_independent_roots_are_two_findings(tmp_path: Path) -> None:
    for rank in range(4):
        pair = [0, 1] if rank < 2 else [2, 3]
        made = HandMade(rank).group("1", pair, "tensor").call(group="1")
        if rank % 2 == 0:
            made.call(group="1", at=1, done=False)
        made.write(tmp_path)
    report = explain_files([tmp_path])
    assert culprits(report) == (1, 3)
    assert sorted(finding.ranks for finding in report.findings) == [(1,), (3,)]


def test_a_newer_set_of_dumps_counts(tmp_path: Path) -> None:
    """Dumps of a healthy moment, and of the hang a minute later, in two folders."""
    for rank in world(4):
        rank.call(at=0).call(at=1, done=False).write(tmp_path / "first", written=1.0)
    late = stuck(4, missing=2)
    for rank in late:
        for entry in rank.entries:
            entry["time_created_ns"] += 60 * 10**9
        rank.write(tmp_path / "second", written=400.0)
    report = explain_files([tmp_path])
    assert culprits(report) == (2,)
    assert any("older dumps were set aside" in note for note in report.data["notes"])  # type: ignore[union-attr]


def test_a_rank_with_only_an_older_dump_is_not_taken_for_missing(tmp_path: Path) -> None:
    """Rank 1's dump was taken before the others'; that it lags behind there says nothing."""
    for rank in world(4):
        last = 3 if rank.rank == 1 else 9
        for step in range(last):
            rank.call(at=step)
        if rank.rank not in (1, 2):
            rank.call(at=9.0, done=False)
        rank.write(tmp_path)
    assert culprits(explain_files([tmp_path])) == (2,)


def test_both_recorders_of_a_rank_are_read(tmp_path: Path) -> None:
    """A group for both devices: NCCL's dumps show nothing open, gloo's show who did not come to the barrier."""
    for rank in range(4):
        HandMade(rank).group("0", range(4), "default_pg").call().call(at=1).write(tmp_path / "nccl")
        made = HandMade(rank, "gloo").group("0", range(4), "default_pg").call("barrier", at=0.5)
        if rank != 2:
            made.call("barrier", at=2, done=False)
        made.write(tmp_path / "gloo", "gloo_trace_rank_{rank}")
    assert culprits(explain_files([tmp_path])) == (2,)


def test_gloo_dumps_name_no_members(tmp_path: Path) -> None:
    ranks = world(4, "gloo")
    for rank in ranks:
        rank.call().call(at=1)
        if rank.rank != 1:
            rank.call(at=2, done=False)
    assert culprits(explain_files([write(ranks, tmp_path)])) == (1,)


def test_the_world_size_may_be_told(tmp_path: Path) -> None:
    ranks = [rank for rank in world(4, "gloo") if rank.rank != 3]
    for rank in ranks:
        rank.call().call(at=1, done=False)
    write(ranks, tmp_path)
    assert culprits(explain_files([tmp_path])) is None  # three ranks that agree, as far as anybody can see
    assert culprits(explain_files([tmp_path], world_size=4)) == (3,)


def test_a_group_made_again_is_another_group(tmp_path: Path) -> None:
    """After destroy and init again the numbers begin anew; only pg_id tells."""
    ranks = world(4)
    for rank in ranks:
        for step in range(7):
            rank.call(at=step, pg_id=0)
        rank.numbers.clear()
        rank.call(at=20, pg_id=1)
        if rank.rank != 0:
            rank.call(at=21, pg_id=1, done=False)
    assert culprits(explain_files([write(ranks, tmp_path)])) == (0,)


def test_completed_but_not_retired_is_done(tmp_path: Path) -> None:
    ranks = world(2)
    for rank in ranks:
        rank.call().call(at=1)
        rank.entries[-1]["retired"] = False
    assert culprits(explain_files([write(ranks, tmp_path)])) is None


def test_a_nccl_operation_that_timed_out_is_not_done(tmp_path: Path) -> None:
    """`retired` without `completed`: the watchdog gave up on it."""
    ranks = stuck(4, missing=3)
    for rank in ranks[:3]:
        rank.entries[-1]["retired"] = True
    assert culprits(explain_files([write(ranks, tmp_path)])) == (3,)


def test_dumps_of_a_moving_job_have_no_verdict(tmp_path: Path) -> None:
    """One rank is behind by one operation, and the files were written in that very moment."""
    for rank in stuck(4, missing=2):
        rank.write(tmp_path, written=5.02)
    report = explain_files([tmp_path])
    assert report.verdict is None
    assert "Take dumps again" in str(report.data["unknown"])


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(RankcallError, match=r"none of its 1 files is a flight-recorder dump or a stack"):
        explain_files([tmp_path])
    with pytest.raises(RankcallError, match="does not exist"):
        explain_files([tmp_path / "nowhere"])
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps([1, 2, 3], 2))
    with pytest.raises(RankcallError, match="it holds no dump"):
        explain_files([tmp_path])


def test_a_saved_snapshot_is_judged_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(stuck(8, missing=5), tmp_path / "dumps")
    saved = tmp_path / "all.json"
    with pytest.raises(SystemExit) as first:
        main(["why", str(tmp_path / "dumps"), "--save-snapshot", str(saved)])
    one = capsys.readouterr().out
    with pytest.raises(SystemExit) as second:
        main(["why", str(saved)])
    assert capsys.readouterr().out == one
    assert (first.value.code, second.value.code) == (1, 1)
    snapshot = snapshot_from_json(saved.read_bytes())
    assert snapshot.origin == "files"
    assert snapshot.group_members == {"0-7#0": ((0, 7),)}


def test_one_screen_at_any_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(stuck(300, missing=117, steps=2), tmp_path)
    with pytest.raises(SystemExit):
        main(["why", str(tmp_path)])
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) < 50
    assert "0-116, 118-299 (299)" in shown
