"""`rankcall demo`: a real 4-rank job with a planted hang, started, watched and explained.

`train.py` beside this file is the job; it knows nothing of rankcall.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

from rankcall.errors import RankcallError
from rankcall.findings import Report, report_from_json
from rankcall.render.page import current_folder
from rankcall.render.plain import short_path
from rankcall.render.words import Language

RANKS = 4
PLANTED = "data-dependent-skip"


def show(keep: Path | None, *, lang: Language = "en", no_color: bool = False, verbose: bool = False) -> int:
    """Run the demo in `keep`, or in a fresh temporary folder. Returns 0 if the planted fault was named.

    Raises RankcallError if PyTorch is missing or the folder cannot be used.
    """
    if importlib.util.find_spec("torch") is None:
        raise RankcallError("the demo trains a small model and needs PyTorch: pip install torch.")
    folder = _folder(keep)
    script, run_dir = folder / "train.py", folder / "run"
    # A copy: what runs should lie where users' scripts do, not among installed packages, and may be edited.
    shutil.copyfile(Path(__file__).with_name("train.py"), script)
    arguments = ["--standalone", "--nproc-per-node", str(RANKS), "--run-dir", str(run_dir), "--on-hang", "stop"]
    arguments += ["--lang", lang, *(["--no-color"] if no_color else []), *(["--verbose"] if verbose else [])]
    _say(f"$ rankcall run --nproc-per-node {RANKS} --on-hang stop {_short(script)}\n")

    from rankcall.launch import main as launch_main

    code = launch_main([*arguments, str(script)])
    return _closing(script, run_dir, code)


def _folder(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="rankcall-demo-"))
    try:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise RankcallError(f"--keep {keep} already holds something; name a folder that is new or empty.")
    except OSError as error:
        raise RankcallError(f"--keep {keep} cannot be used: {error.strerror or error}.") from error
    return keep.absolute()


def _closing(script: Path, run_dir: Path, code: int) -> int:
    """Say what to try next; 1 if the demo did not show what it should."""
    report_file = run_dir / "report.json"
    report: Report | None = None
    if report_file.is_file():
        report = report_from_json(report_file.read_bytes(), str(report_file))
    found = report.verdict.pitfall if report is not None and report.verdict is not None else None
    why, explain = f"rankcall why {_short(run_dir)}", f"rankcall explain {PLANTED}"
    room = max(len(why), len(explain))
    _say(
        f"\nThat was the demo: {_short(script)} skips a bad batch on one rank alone.\nNext:\n"
        f"  {why:{room}}  the same verdict again, from the recorded run\n"
        f"  {explain:{room}}  what it is, how to tell, how to fix\n"
        f"  rankcall run --nproc-per-node N your_script.py"
    )
    if found != PLANTED:
        _say(f"\nrankcall: the demo expected {PLANTED}, but the verdict was {found} (exit code of the job: {code}).")
        return 1
    return 0


def _short(path: Path) -> str:
    return short_path(str(path), current_folder())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
