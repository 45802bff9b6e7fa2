"""The command line: what each verb takes, and how errors and exit codes reach the shell.

Every verb imports its own folder when it is called, so that `rankcall --help` costs next to nothing.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from rankcall import __version__
from rankcall.errors import RankcallError

NOTHING_FOUND, SOMETHING_FOUND, WRONG_USAGE, OUR_ERROR = 0, 1, 2, 70
INTERRUPTED = 130  # as a shell says it for a program that Ctrl-C ended
PIPE_CLOSED = 141  # likewise for one whose reader (`head`) went away

_P = ParamSpec("_P")


class ReportFormat(str, Enum):
    """What `why` writes. The picture is for documents, the trace for Perfetto and chrome://tracing."""

    terminal = "terminal"
    json = "json"
    svg = "svg"
    perfetto = "perfetto"


class PageFormat(str, Enum):
    """What `explain` writes."""

    terminal = "terminal"
    json = "json"


class Lang(str, Enum):
    """The language of the texts."""

    en = "en"
    zh = "zh"


app = typer.Typer(
    name="rankcall",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: drawing it with rich would cost half of the start-up time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

OutputOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Write there instead of to the terminal.")
]
LangOption = Annotated[Lang, typer.Option("--lang", help="Language of the texts.")]
NoColorOption = Annotated[bool, typer.Option("--no-color", help="No colours, even on a terminal.")]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Everything, with tracebacks of errors.")]


def main(arguments: Sequence[str] | None = None) -> int:
    """The `rankcall` command. Returns the exit code, or raises SystemExit with it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_closed_streams()
    if given[:1] == ["run"]:
        # Everything after the verb belongs to torchrun's own parser; nothing may look at it first.
        return _guarded(functools.partial(_run, given[1:]), verbose="-v" in given or "--verbose" in given)
    app(args=given, prog_name="rankcall")
    return NOTHING_FOUND


def _open_closed_streams() -> None:
    """Started with `>&-`, Python has no standard output at all; then nobody wants it."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the end
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _run(arguments: list[str]) -> int:
    from rankcall.launch import main as launch_main

    return launch_main(arguments)


def _guarded(action: Callable[[], int], verbose: bool) -> int:
    """Do it; errors become one sentence and an exit code, never a traceback unless asked for."""
    try:
        code = action()
        sys.stdout.flush()
        return code
    except RankcallError as error:
        _say(f"rankcall: {error}")
        _forget_output()
        return WRONG_USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return PIPE_CLOSED
    except Exception as error:
        if verbose:
            import traceback

            traceback.print_exc()
        _say(
            f"rankcall: an error of rankcall itself ({type(error).__name__}: {error}). Please report it with the "
            f"output of the same command and -v, and the version: rankcall {__version__}, "
            f"Python {sys.version.split()[0]}."
        )
        return OUR_ERROR


def _forget_output() -> None:
    """Let what standard output could not take go: Python flushes it once more at exit, and would fail aloud."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _say(sentence: str) -> None:
    from rankcall.render.plain import paragraph

    try:
        print(paragraph(sentence), file=sys.stderr)
    except OSError:
        pass  # nobody listens


def _verb(function: Callable[_P, int]) -> Callable[_P, None]:
    """Make a function that returns an exit code a verb."""

    @functools.wraps(function)
    def command(*args: _P.args, **kwargs: _P.kwargs) -> None:
        verbose = bool(kwargs.get("verbose", False))
        raise SystemExit(_guarded(lambda: function(*args, **kwargs), verbose))

    # typer reads the signature; the return type is not part of it.
    return command


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"rankcall {__version__}")
        raise typer.Exit


@app.callback(epilog="Example:  rankcall run --nproc-per-node 4 train.py --lr 0.1")
def _rankcall(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Which rank did not arrive, where is it, why, and what now? For distributed PyTorch jobs."""


@app.command(
    "run",
    short_help="Start a script on N ranks as torchrun does, and watch them.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="[torchrun's options]",
)
def _run_for_help(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="SCRIPT ARGS...", show_default=False)] = None,
) -> None:
    """Start a training script on N ranks, as torchrun does; say who did not arrive if it hangs or fails."""
    # Only the list of verbs and the shell's completion come here: `main` hands a real `run` over unread.
    raise SystemExit(_guarded(functools.partial(_run, list(arguments or [])), verbose=False))


@app.command(
    "why",
    short_help="Say which rank did not arrive, and why.",
    epilog="Examples:  rankcall why run-folder/;  rankcall why dumps/",
)
@_verb
def why(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN_DIR|DUMP_DIR|FILES",
            help="A run's folder or its snapshot.json; or flight-recorder dumps and stacks (py-spy, faulthandler, gdb, "
            "pystack) of any job, as files or folders.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[ReportFormat, typer.Option("--format", help="What to write.")] = ReportFormat.terminal,
    output: OutputOption = None,
    world_size: Annotated[
        int | None,
        typer.Option("--world-size", min=1, metavar="N", help="Ranks of the job, where the dumps do not say it."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save-snapshot", metavar="FILE", help="Write all that was read as one snapshot, to judge again."
        ),
    ] = None,
    lang: LangOption = Lang.en,
    no_color: NoColorOption = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="The verdict's sentence only.")] = False,
    verbose: VerboseOption = False,
) -> int:
    """Say which rank did not arrive: from a recorded run, or from what any job left behind.

    Without arguments: from the job now running here.

    Exit code 0: nothing to explain. 1: a verdict, or a finding. 2: nothing that could be read.
    """
    from rankcall.render.output import Target
    from rankcall.render.page import Detail
    from rankcall.why import Wanted, answer

    detail: Detail = "quiet" if quiet else "verbose" if verbose else "normal"
    wanted = Wanted(format.value, lang.value, detail, world_size, save)
    return answer(paths or [], wanted, Target(output, color=False if no_color else None))


def _complete_name(incomplete: str) -> list[str]:
    from rankcall.pitfalls import names

    return [name for name in names() if name.startswith(incomplete)]


@app.command(
    "explain",
    short_help="What a pitfall is, how to tell, how to fix it.",
    epilog="Example:  rankcall explain uneven-steps",
)
@_verb
def explain(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", autocompletion=_complete_name, help="A pitfall.", show_default=False),
    ] = None,
    format: Annotated[PageFormat, typer.Option("--format", help="What to write.")] = PageFormat.terminal,
    output: OutputOption = None,
    lang: LangOption = Lang.en,
    no_color: NoColorOption = False,
    verbose: VerboseOption = False,
) -> int:
    """What a pitfall is, how to tell, how to fix it; without NAME, the list of all pitfalls."""
    from rankcall.explain import explain as explain_name
    from rankcall.render.output import Target

    target = Target(output, color=False if no_color else None)
    return explain_name(name, format.value, lang.value, target)


@app.command(
    "demo", short_help="A small job with a planted hang, explained.", epilog="Example:  rankcall demo --keep ./demo-run"
)
@_verb
def demo(
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep script and run folder there (default: a temporary folder)."),
    ] = None,
    lang: LangOption = Lang.en,
    no_color: NoColorOption = False,
    verbose: VerboseOption = False,
) -> int:
    """A 4-rank CPU job with a planted hang, found and explained in seconds. Needs PyTorch, no GPU."""
    from rankcall.demo import show

    return show(keep, lang=lang.value, no_color=no_color, verbose=verbose)


@app.command("version")
@_verb
def version() -> int:
    """Print the version."""
    print(f"rankcall {__version__}")
    return NOTHING_FOUND
