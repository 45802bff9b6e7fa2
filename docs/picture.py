"""Draws a run's verdict as docs/verdict.svg: `python picture.py RUN_DIR FILE.svg`, called by `make picture`.

The machine's own name becomes `host-a`; nothing else of the run is changed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rankcall.diagnose.readers.run_folder import read_recorded
from rankcall.findings import Report, report_from_json, report_to_json
from rankcall.render.svg import to_svg


def renamed(report: Report, hosts: set[str]) -> Report:
    """The report with `host-a` for every host's name: this picture is of one machine."""
    text = report_to_json(report).decode()
    for host in hosts:
        text = text.replace(host, "host-a")
    return report_from_json(text.encode())


def main() -> None:
    folder, picture = Path(sys.argv[1]), Path(sys.argv[2])
    recorded = read_recorded(folder)
    report, snapshot = recorded.report, recorded.snapshot
    if report is None or report.verdict is None or snapshot is None:
        sys.exit(f"{folder} holds no verdict to draw.")
    report = renamed(report, {process.host for process in snapshot.processes})
    picture.write_text(to_svg(report, sources=snapshot.sources, base=os.getcwd()), encoding="utf-8")
    print(f"drew {picture}")


if __name__ == "__main__":
    main()
