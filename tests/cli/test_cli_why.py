"""`rankcall why`: the verdict of a recorded run, and one clear sentence for everything that cannot be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import command, healthy, run_folder, sleeping_rank, verdict

from rankcall.findings import Incident, Report, report_from_json
from rankcall.snapshot import snapshot_to_json


def test_a_recorded_hang_is_explained_again(tmp_path: Path) -> None:
    ended = command("why", str(run_folder(tmp_path / "run", sleeping_rank())))
    assert ended.code == 1
    assert ended.out.startswith("rank 2")
    assert "time.sleep(1e6)" in ended.out
    assert "Roll call  4 ranks, host-a" in ended.out
    assert ended.err == ""


def test_the_snapshot_file_alone_will_do(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", sleeping_rank())
    assert command("why", "-q", str(folder / "snapshot.json")).out == command("why", "-q", str(folder)).out


def test_json_is_a_report_that_says_the_same(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", sleeping_rank())
    ended = command("why", str(folder), "--format", "json")
    report = report_from_json(ended.out.encode())
    assert report.verb == "why"
    assert report.verdict is not None
    assert report.verdict.culprits == (2,)
    assert command("why", str(folder)).out.replace("\n", " ").startswith(report.verdict.sentence)


def test_the_path_named_is_the_folder_read_and_not_where_it_was_made(tmp_path: Path) -> None:
    ended = command("why", "run", cwd=run_folder(tmp_path / "run", sleeping_rank()).parent)
    assert "Report: run/report.json" in ended.out


def test_what_only_the_run_could_know_is_kept(tmp_path: Path) -> None:
    said = Incident(0, 1110.0, verdict("straggler", "rank 2 is slow"), 1115.0)
    written = Report(verb="run", outcome="hung", verdict=verdict(), incidents=(said,))
    folder = run_folder(tmp_path / "run", sleeping_rank(), written)
    report = report_from_json(command("why", str(folder), "--format", "json").out.encode())
    assert report.incidents == (said,)
    assert report.outcome == "hung"
    assert report.verdict is not None
    assert report.verdict.detected_after_s == 1.25


def test_another_verdict_than_then_is_said(tmp_path: Path) -> None:
    written = Report(verb="run", verdict=verdict("straggler", "rank 2 is slow"))
    ended = command("why", str(run_folder(tmp_path / "run", sleeping_rank(), written)))
    assert "said then: rank 2 is slow" in ended.err


def test_a_healthy_job_needs_no_explanation(tmp_path: Path) -> None:
    ended = command("why", str(run_folder(tmp_path / "run", healthy())))
    assert (ended.code, ended.out) == (0, "nothing to explain: the job completed (4 ranks, 20 steps)\n")


def test_a_report_without_snapshot_is_shown_as_it_was_written(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", None, Report(verb="run", verdict=verdict()))
    for path in (folder, folder / "report.json"):
        ended = command("why", str(path))
        assert ended.code == 1
        assert ended.out.startswith("rank 2 sleeps at train.py:5\n")
        assert "not judged again" in ended.err


def test_output_goes_to_the_file(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", sleeping_rank())
    ended = command("why", str(folder), "--format", "json", "--output", str(tmp_path / "out.json"))
    assert (ended.code, ended.out) == (1, "")
    assert json.loads((tmp_path / "out.json").read_text())["schema"] == "rankcall.report/1"


def test_the_picture_is_an_svg(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", sleeping_rank())
    assert command("why", str(folder), "--format", "svg").out.startswith("<svg")


def _bad(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    good = snapshot_to_json(sleeping_rank())
    if name == "not-ours":
        (folder / "weights.bin").write_bytes(b"\0\1")
    elif name == "cut-off":
        (folder / "snapshot.json").write_bytes(good[: len(good) // 2])
    elif name == "empty-file":
        (folder / "snapshot.json").write_bytes(b"")
    elif name == "newer":
        (folder / "snapshot.json").write_bytes(good.replace(b"rankcall.snapshot/1", b"rankcall.snapshot/2"))
    elif name == "other-schema":
        (folder / "snapshot.json").write_bytes(b'{"schema": "someone.else/1"}')
    elif name == "wrong-type":
        (folder / "snapshot.json").write_bytes(good.replace(b'"taken_at":1130.0', b'"taken_at":"noon"'))
    elif name == "binary":
        (folder / "snapshot.json").write_bytes(b"\x80\x04\x95 pickle")
    elif name == "deep":
        (folder / "snapshot.json").write_bytes(b'{"schema":"rankcall.snapshot/1","x":' + b"[" * 100_000)
    elif name == "folder-as-file":
        (folder / "snapshot.json").mkdir()
    elif name == "unfinished":
        run_folder(folder, None)
    elif name == "parent":
        run_folder(folder / "20260101-one", sleeping_rank())
        run_folder(folder / "20260102-two", sleeping_rank())
    return folder


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("empty", "is empty; expected the folder of a run"),
        ("not-ours", "is not the folder of a run"),
        ("cut-off", "was cut off"),
        ("empty-file", "is empty; expected a rankcall.snapshot/1 file"),
        ("newer", "was written by a newer rankcall"),
        ("other-schema", "has schema 'someone.else/1'; expected rankcall.snapshot/1"),
        ("wrong-type", "does not fit schema rankcall.snapshot/1"),
        ("binary", "is no readable JSON"),
        ("deep", "is nested deeper than anything rankcall writes"),
        ("folder-as-file", "is no regular file"),
        ("unfinished", "the run is still going on, or was killed"),
        ("parent", "holds 2 runs; name one of them"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path: Path, name: str, says: str) -> None:
    ended = command("why", str(_bad(tmp_path, name)))
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert ended.err.startswith("rankcall: ")
    assert ended.err.count("\n") == 1
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/no/such/folder", "does not exist"),
        ("\x1b[31mred\u202e", "\\x1b[31mred\\u202e does not exist"),
        ("x" * 5000, "xxx… "),
        ("/dev/null", "is no regular file"),
        (__file__, "is neither a flight-recorder dump nor a stack"),
    ],
)
def test_bad_paths_are_one_sentence_too(path: str, says: str) -> None:
    ended = command("why", path)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err
    assert "\x1b" not in ended.err


@pytest.mark.skipif(os.getuid() != 0, reason="changes to another user")
def test_the_folder_of_somebody_else(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", sleeping_rank())
    folder.chmod(0o700)
    # The interpreter must be loaded before the change of user: it may be private too.
    code = (
        "import os, sys; from pathlib import Path\n"
        "from rankcall.diagnose.readers.run_folder import read_recorded\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try:\n    read_recorded(Path(sys.argv[1]))\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("RankcallError ")
    assert "may not be read by you: Permission denied" in done.stdout


def test_two_folders_are_one_too_many(tmp_path: Path) -> None:
    folder = str(run_folder(tmp_path / "run", healthy()))
    ended = command("why", folder, folder)
    assert ended.code == 2
    assert "one run at a time" in ended.err


def test_an_output_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", healthy())
    ended = command("why", str(folder), "--output", str(tmp_path / "no" / "such" / "file"))
    assert ended.code == 2
    assert "--output" in ended.err


def test_no_run_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import rankcall.watch
    from rankcall.cli import main

    monkeypatch.setattr(rankcall.watch, "live_runs", list)
    with pytest.raises(SystemExit) as ending:
        main(["why"])
    assert ending.value.code == 2
    assert "no job started by rankcall is running on this machine" in capsys.readouterr().err


class _Live:
    """A run as `live_runs` gives it."""

    def __init__(self, name: str, started_at: float) -> None:
        self.run_dir, self.command, self.started_at = f"/runs/{name}", (f"{name}.py",), started_at

    def snapshot(self) -> object:
        return sleeping_rank()


def test_the_newest_run_is_asked_and_the_others_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import rankcall.watch
    from rankcall.cli import main

    monkeypatch.setattr(rankcall.watch, "live_runs", lambda: [_Live("new", 2.0), _Live("old", 1.0)])
    with pytest.raises(SystemExit) as ending:
        main(["why"])
    shown = capsys.readouterr()
    assert ending.value.code == 1
    assert shown.out.startswith("rank 2")
    assert "also running here: rankcall why /runs/old  (old.py)" in shown.err
    assert "asked the job in /runs/new  (new.py)" in shown.err


def test_a_run_that_goes_on_is_asked_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import rankcall.watch
    from rankcall.cli import main

    folder = run_folder(tmp_path / "run", None)
    live = _Live("run", 1.0)
    live.run_dir = str(folder)
    monkeypatch.setattr(rankcall.watch, "live_runs", lambda: [live])
    with pytest.raises(SystemExit) as ending:
        main(["why", str(folder)])
    assert ending.value.code == 1
    assert capsys.readouterr().out.startswith("rank 2")
