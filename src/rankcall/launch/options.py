"""The options of `rankcall run`: torch's own parser with ours added to it, and which of the two forms is meant."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal, NoReturn

from rankcall.errors import RankcallError

PROG = "rankcall run"
_DESCRIPTION = (
    "Start a distributed PyTorch job as torchrun does, and say which rank did not arrive, where it is, why, and "
    "what to do. Every option of torchrun works and means the same; rankcall's own stand in their own group."
)
_EXAMPLES = """examples:
  rankcall run --nproc-per-node 4 train.py --lr 0.1
  rankcall run --standalone --nproc-per-node gpu --on-hang stop -m my_package.train
  rankcall run --stall-after 5m -- mpirun -n 8 python train.py
"""
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
# Torch from which on its variables and the flight recorder are named TORCH_FR_…
MISSING_TORCH = (
    "torch is not installed for this Python ({python}), and `rankcall run SCRIPT` starts ranks with torch's own "
    "launcher. Install rankcall where torch is, or run your launcher inside: rankcall run -- COMMAND."
)


@dataclass(frozen=True)
class Options:
    """rankcall's own options. `stall_after` None means that rankcall decides."""

    run_dir: str | None = None
    output: str | None = None
    stall_after: float | None = None
    on_hang: Literal["report", "stop"] = "report"
    format: Literal["terminal", "json"] = "terminal"
    lang: Literal["en", "zh"] = "en"
    no_color: bool = False
    quiet: bool = False
    verbose: bool = False


@dataclass(frozen=True)
class Request:
    """What was asked for: `command` for the `--` form, else torch's own arguments in `torch`."""

    options: Options
    command: tuple[str, ...] = ()
    torch: argparse.Namespace | None = field(default=None, compare=False)

    @property
    def script(self) -> str:
        """What is run, for the run folder's name."""
        return self.command[0] if self.torch is None else str(self.torch.training_script)


def read_request(argv: Sequence[str]) -> Request:
    """Read the arguments after `run`. Raises RankcallError for wrong usage, SystemExit(0) after --help."""
    at = _bare_dashes(argv)
    if at is not None:
        parser: argparse.ArgumentParser = _Parser(
            prog=PROG, description=_DESCRIPTION, epilog=_EXAMPLES, allow_abbrev=False
        )
        _add_own_options(parser)
        options = _own_options(parser.parse_args(list(argv[:at])))
        return Request(options, _checked_command(argv[at + 1 :]))
    parser = _torch_parser()
    arguments = parser.parse_args(list(argv))
    options = _own_options(arguments)
    _check_script(arguments)
    return Request(options, torch=arguments)


def _bare_dashes(argv: Sequence[str]) -> int | None:
    """Where `--` stands if nothing but our own options comes before it: then a command follows."""
    parser = argparse.ArgumentParser(add_help=False)
    takes_value = {option: action.nargs != 0 for action in _add_own_options(parser) for option in action.option_strings}
    at = 0
    while at < len(argv):
        word = argv[at]
        if word == "--":
            return at
        name, equals, _ = word.partition("=")
        if name not in takes_value:
            return None
        at += 2 if takes_value[name] and not equals else 1
    return None


class _Parser(argparse.ArgumentParser):
    def __init__(self, **settings: object) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        _refuse(message)


def _refuse(message: str) -> NoReturn:
    if "required: training_script" in message:
        message = "no script given; expected rankcall run [options] SCRIPT, or rankcall run [options] -- COMMAND"
    raise RankcallError(f"{message.rstrip('.')}. See {PROG} --help.")


def _torch_parser() -> argparse.ArgumentParser:
    try:
        from torch.distributed.run import get_args_parser
    except ImportError as error:
        if error.name != "torch":
            raise RankcallError(f"torch cannot be imported: {error}.") from error
        raise RankcallError(MISSING_TORCH.format(python=sys.executable)) from error
    parser: argparse.ArgumentParser = get_args_parser()
    parser.prog = PROG
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.error = _refuse  # type: ignore[method-assign]
    _add_own_options(parser)
    return parser


def _add_own_options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    group = parser.add_argument_group("rankcall's own options")
    add = group.add_argument
    return [
        add(
            "--run-dir", metavar="DIR",
            help="Where records, logs and the report go: a new or empty folder. Default: a fresh one under "
            "./rankcall-runs.",
        ),
        add("--output", metavar="FILE", help="Also write the report (JSON) to this file at the end."),
        add(
            "--stall-after", metavar="TIME", type=_stall_after, default=None,
            help="Call the job stalled after so long without progress: seconds, or 90s, 5m, 1h. Default: auto, "
            "from the job's own pace. States that are proven need no waiting.",
        ),
        add(
            "--on-hang", choices=("report", "stop"), default="report",
            help="What to do about a hang: report it and let the job be (default), or stop the job with exit "
            "code 124.",
        ),
        add(
            "--format", choices=("terminal", "json"), default="terminal",
            help="The verdict as text on standard error (default), or the whole report as JSON on standard output "
            "at the end.",
        ),
        add("--lang", choices=("en", "zh"), default="en", help="Language of the verdict."),
        add("--no-color", action="store_true", help="No colours, also on a terminal."),
        add("-q", "--quiet", action="store_true", help="Only the verdict's one sentence."),
        add(
            "-v", "--verbose", action="store_true",
            help="Show more: the whole report, the run folder, what torch's launcher says.",
        ),
    ]  # fmt: skip


def _stall_after(text: str) -> float | None:
    if text == "auto":
        return None
    number = text.strip().lower()
    unit = number[-1:] if number[-1:] in ("s", "m", "h") else ""
    try:
        seconds = float(number[: len(number) - len(unit)]) * _UNITS[unit]
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; expected seconds, or 90s, 5m, 1h, or auto")
    return seconds


def _own_options(arguments: argparse.Namespace) -> Options:
    names = Options.__dataclass_fields__
    options = Options(**{name: value for name, value in vars(arguments).items() if name in names})
    if options.quiet and options.verbose:
        raise RankcallError("-q and -v exclude one another; give one of them.")
    if options.output is not None and Path(options.output).is_dir():
        raise RankcallError(f"--output {options.output} is a folder; expected a file.")
    if options.output is not None and not Path(options.output).absolute().parent.is_dir():
        raise RankcallError(f"--output {options.output}: there is no folder {Path(options.output).absolute().parent}.")
    return options


def _checked_command(command: Sequence[str]) -> tuple[str, ...]:
    if not command:
        raise RankcallError(f"no command after --; expected {PROG} [options] -- COMMAND ARGS.")
    if shutil.which(command[0]) is None:
        raise RankcallError(f"there is no command {command[0]!r}; is it in PATH?")
    return tuple(command)


def _check_script(arguments: argparse.Namespace) -> None:
    """Refuse what no rank could run, before any rank is started."""
    script: str = arguments.training_script
    if arguments.module and not arguments.no_python:
        if not os.environ.get("PYTHON_EXEC") and not _module_exists(script):
            raise RankcallError(f"there is no module {script!r} that this Python could run (-m).")
    elif arguments.no_python and not arguments.run_path:
        if shutil.which(script) is None:
            raise RankcallError(f"there is no program {script!r} to run (--no-python).")
    elif not Path(script).exists():
        raise RankcallError(f"there is no script {script!r} here ({_here()}).")
    elif Path(script).is_dir() and not (Path(script) / "__main__.py").exists():
        raise RankcallError(f"{script!r} is a folder without __main__.py; name a script.")


def _module_exists(name: str) -> bool:
    """Whether the module's outermost package can be found; importing it is left to the ranks."""
    try:
        return PathFinder.find_spec(name.partition(".")[0], [_here(), *sys.path]) is not None or (
            name.partition(".")[0] in sys.stdlib_module_names
        )
    except (ImportError, ValueError, OSError):
        return True  # no answer is no reason to refuse


def _here() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return "a folder that was removed"
