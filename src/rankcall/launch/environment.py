"""What the ranks find in their environment beside the user's own: defaults that help, and overrule nothing set."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

# From this version on the flight recorder's settings are named TORCH_FR_…; the older names then print a warning
# into the ranks' stderr, so exactly one of the two is set.
_RENAMED_IN = (2, 9)
_RING_ENTRIES = "2000"  # what newer versions record by default
_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def flight_recorder_defaults(environment: Mapping[str, str], torch_version: str | None, dumps: Path) -> dict[str, str]:
    """Have NCCL's flight recorder on, and dump into the run folder when a collective times out.

    `torch_version` None (the ranks' torch is not known): only what every version understands.
    """
    defaults = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    places = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    rings = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    version = _numbers(torch_version)
    if version is not None:
        new = version >= _RENAMED_IN
        if not any(name in environment for name in places):
            defaults[places[0] if new else places[1]] = str(dumps / "rank-")
        if not new and not any(name in environment for name in rings):
            defaults[rings[1]] = _RING_ENTRIES
    return {name: value for name, value in defaults.items() if name not in environment}


def console_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """The ranks print into pipes of ours: have them print at once, and as wide as the terminal that shows it."""
    defaults = {"PYTHONUNBUFFERED": "1"}  # torchrun's `python -u`, for launchers that do not say it
    with contextlib.suppress(OSError, ValueError):
        columns, lines = os.get_terminal_size(1)
        if columns > 0 and lines > 0:
            defaults.update(COLUMNS=str(columns), LINES=str(lines))
    return {name: value for name, value in defaults.items() if name not in environment}


def error_handling_note(environment: Mapping[str, str]) -> str:
    """What TORCH_NCCL_ASYNC_ERROR_HANDLING is for the ranks. It is reported, never changed."""
    value = environment.get(_ERROR_HANDLING)
    if value is None:
        return f"{_ERROR_HANDLING} is not set; torchrun gives its ranks 1 (torch's own default is 3)"
    return f"{_ERROR_HANDLING}={value} was set by the caller"


@contextlib.contextmanager
def changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Put `changes` into this process's environment, which the ranks inherit, and restore it afterwards."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _numbers(version: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else None
