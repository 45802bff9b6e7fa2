"""A Report as JSON, the schema of `docs/report.md`. It is data for programs: nothing is cut."""

from __future__ import annotations

from rankcall.findings import Report, report_to_json

# JSON allows these raw, but a terminal that shows the file would obey them: C1 controls, and marks that turn
# the reading direction, so that a path shows another name than it has. Escaped they mean the same to readers.
_HOSTILE = (*range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = {number: f"\\u{number:04x}" for number in _HOSTILE}


def to_json(report: Report) -> str:
    """The report as indented JSON, ending in a newline."""
    return report_to_json(report).decode("utf-8").translate(_ESCAPES)
