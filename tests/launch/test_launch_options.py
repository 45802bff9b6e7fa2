"""The arguments of `rankcall run`: torch's own and ours in one parser, and the two forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankcall.errors import RankcallError
from rankcall.launch.options import Options, read_request

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")


def test_torchs_options_and_ours_stand_side_by_side() -> None:
    request = read_request(
        ["--nproc-per-node", "4", "--run-dir", "out", "-t", "3", "--stall-after", "5m", "train.py", "--lr", "0.1", "-q"]
    )
    assert request.options == Options(run_dir="out", stall_after=300.0)
    assert request.torch is not None
    assert (request.torch.nproc_per_node, request.torch.tee) == ("4", "3")
    assert request.torch.training_script_args == ["--lr", "0.1", "-q"]
    assert request.script == "train.py"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("1.5", 1.5), ("90s", 90.0), ("2M", 120.0), ("1h", 3600.0), ("auto", None)]
)
def test_times_may_have_a_unit(text: str, seconds: float | None) -> None:
    assert read_request(["--stall-after", text, "train.py"]).options.stall_after == seconds


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "nan", "inf", "5d", "m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(RankcallError, match="is no time"):
        read_request([f"--stall-after={text}", "train.py"])


def test_a_bare_double_dash_after_our_own_options_begins_a_command() -> None:
    request = read_request(["--on-hang", "stop", "-q", "--output=r.json", "--", "python", "train.py", "--", "x"])
    assert request.torch is None
    assert request.command == ("python", "train.py", "--", "x")
    assert request.options == Options(on_hang="stop", quiet=True, output="r.json")


@pytest.mark.parametrize(
    "argv",
    [
        ["train.py", "--", "x"],
        ["train.py", "--format", "xml", "--", "x"],
        ["--nproc-per-node", "2", "train.py", "--", "x"],
    ],
)
def test_a_double_dash_that_belongs_to_the_script_is_left_to_it(argv: list[str]) -> None:
    request = read_request(argv)
    assert request.torch is not None and request.torch.training_script == "train.py"
    assert "x" in request.torch.training_script_args


def test_torchs_own_options_before_a_double_dash_mean_what_torchrun_means() -> None:
    request = read_request(["--nproc-per-node", "2", "--", "train.py", "a"])
    assert request.torch is not None and request.torch.training_script == "train.py"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "no script given"),
        (["--nproc-per-node", "2"], "no script given"),
        (["nosuch.py"], "there is no script 'nosuch.py'"),
        (["-m", "nosuch_module"], "there is no module 'nosuch_module'"),
        (["--no-python", "nosuch-program"], "there is no program 'nosuch-program'"),
        (["--frobnicate", "train.py"], "unrecognized arguments: --frobnicate"),
        (["--max-restarts", "many", "train.py"], "--max-restarts"),
        (["--on-hang", "pray", "train.py"], "invalid choice: 'pray'"),
        (["--"], "no command after --"),
        (["--", "nosuch-command"], "there is no command 'nosuch-command'"),
        (["-q", "-v", "train.py"], "exclude one another"),
        (["--output", ".", "train.py"], "is a folder"),
    ],
)
def test_wrong_usage_is_one_clear_sentence(argv: list[str], says: str) -> None:
    with pytest.raises(RankcallError) as caught:
        read_request(argv)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "argv",
    [
        ["--nnodes", "a"],
        ["--nnodes", "0"],
        ["--nproc-per-node", "many"],
        ["--redirects", "9"],
        ["--max-restarts", "-1"],
        ["--rdzv-conf", "x"],
        ["--local-ranks-filter", "x"],
        ["--no-python", "-m"],
    ],
)
def test_values_that_torch_refuses_are_refused_before_anything_starts(argv: list[str]) -> None:
    from rankcall.launch import torchrun

    request = read_request([*argv, "/bin/true"])
    assert request.torch is not None
    with pytest.raises(RankcallError, match="torch's launcher refuses"):
        torchrun.check(request.torch)


def test_what_torch_accepts_is_accepted_and_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import tempfile

    from rankcall.launch import torchrun

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    request = read_request(["--nproc-per-node", "2", "--tee", "3", "--max-restarts", "2", "train.py"])
    assert request.torch is not None
    torchrun.check(request.torch)
    assert "OMP_NUM_THREADS" not in os.environ
    assert list(tmp_path.iterdir()) == [tmp_path / "train.py"]
    assert request.torch.log_dir is None


def test_help_shows_both_kinds_of_options_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leave:
        read_request(["--help"])
    assert leave.value.code == 0
    text = capsys.readouterr().out
    for word in ("rankcall run", "--nproc-per-node", "--rdzv-backend", "--stall-after", "--on-hang", "examples:"):
        assert word in text
