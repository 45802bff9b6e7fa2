"""What the launcher itself says: verdicts, who was where, and a line where something must be known."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Literal

from rankcall.findings import Report, Verdict, report_to_json
from rankcall.launch.console import Console
from rankcall.launch.options import Options

_ENDS = {
    "completed": "the job completed",
    "crashed": "the job failed",
    "hung": "the job has ended",
    "stopped": "the job was stopped",
}


class Voice:
    """Prints to standard error, between the ranks' lines and never inside one. Nothing here raises."""

    def __init__(self, options: Options, console: Console) -> None:
        self._options = options
        self._console = console
        self._lock = threading.RLock()
        self._said: Verdict | None = None  # the last verdict shown
        self._interrupted = False  # who was where has been shown, and nothing more is to be said

    def line(self, text: str) -> None:
        """One line that the user has to know; not with --quiet or JSON."""
        if not self._options.quiet and self._options.format == "terminal":
            self._print(f"rankcall: {text}\n")

    def detail(self, text: str) -> None:
        if self._options.verbose:
            self.line(text)

    def while_running(self, report: Report) -> None:
        """A new verdict, or that the last one is withdrawn."""
        if self._options.format == "json":
            return
        if report.verdict is None:
            if self._said is not None:
                self._said = None
                self.line("the job moves on; the verdict above is withdrawn.")
            return
        self._report(report)

    def interrupted(self, report: Report) -> None:
        """Who was where when the job was told to end."""
        if self._options.format == "json":
            return
        self._interrupted = True
        if report.verdict is not None and not self._already(report):
            self._report(report)
        elif not self._options.quiet:
            self._roll_call(report)

    def at_end(self, report: Report, closing: str = "") -> None:
        """The last word. Nothing after a healthy job, unless asked for. `closing`: what rankcall did to the job."""
        options = self._options
        if options.output is not None:
            self._write_output(report, options.output)
        if options.format == "json":
            self._print_json(report)
        elif report.outcome == "completed":
            if options.verbose:
                self._report(report)
            else:
                self._remarks(report)
        elif self._interrupted:
            self.detail(f"the report is in {_run_dir(report)}")
        elif self._already(report):
            self.line(f"{closing or _ENDS[report.outcome or 'crashed']}; the verdict above stands.")
        else:
            self._report(report)
            if closing:
                self.line(f"{closing}.")

    def _remarks(self, report: Report) -> None:
        loud = [finding for finding in report.findings if finding.severity != "note"]
        if loud:
            more = f" and {len(loud) - 1} more" if len(loud) > 1 else ""
            message = _one_line(loud[0].message)
            self.line(f"the job completed; {loud[0].severity}: {message}{more} ({_run_dir(report)})")

    def _already(self, report: Report) -> bool:
        """The same verdict has been shown; its sentence may have changed from "waits" to "waited"."""
        new, old = report.verdict, self._said
        if new is None or old is None:
            return False
        return (new.pitfall, new.culprits, new.where) == (old.pitfall, old.culprits, old.where)

    def _report(self, report: Report) -> None:
        if report.verdict is not None:
            self._said = report.verdict
        detail: Literal["quiet", "normal", "verbose"]
        detail = "quiet" if self._options.quiet else "verbose" if self._options.verbose else "normal"
        try:
            from rankcall.render.terminal import print_report

            with self._lock, self._console.exclusive():
                color = False if self._options.no_color else None
                print_report(report, console_file=sys.stderr, color=color, lang=self._options.lang, detail=detail)
        except Exception as error:
            self._print_plainly(report, error)

    def _roll_call(self, report: Report) -> None:
        try:
            from rankcall.render.terminal import print_roll_call

            with self._lock, self._console.exclusive():
                color = False if self._options.no_color else None
                print_roll_call(report, console_file=sys.stderr, color=color, lang=self._options.lang)
        except Exception as error:
            self._print_plainly(report, error)

    def _print_plainly(self, report: Report, error: Exception) -> None:
        """The renderer failed: the answer itself is still worth more than its looks."""
        sentence = report.verdict.sentence if report.verdict is not None else "no verdict"
        self._print(f"rankcall: {_one_line(sentence)} (not shown in full: {error!r})\n")

    def _write_output(self, report: Report, path: str) -> None:
        try:
            Path(path).write_bytes(report_to_json(report))
        except OSError as error:
            self._print(f"rankcall: cannot write --output {path}: {error.strerror}\n")

    def _print_json(self, report: Report) -> None:
        try:
            with self._lock, self._console.exclusive():
                sys.stdout.flush()
                sys.stdout.buffer.write(report_to_json(report))
                sys.stdout.flush()
        except (OSError, ValueError):
            return  # nobody reads it

    def _print(self, text: str) -> None:
        try:
            with self._lock, self._console.exclusive():
                sys.stderr.write(text)
                sys.stderr.flush()
        except (OSError, ValueError):
            return


def _run_dir(report: Report) -> str:
    return (report.job.run_dir if report.job is not None else None) or "the run folder"


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)
