"""The report: what rankcall says. Frozen, typed, serialisable; knows nothing else of the package.

Schema `rankcall.report/1`. Fields may be added, never renamed. Times are seconds since the epoch, UTC; durations
are seconds. `docs/report.md` explains each field for people who read the JSON.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from rankcall import __version__
from rankcall.errors import RankcallError

_T = TypeVar("_T")

REPORT_SCHEMA = "rankcall.report/1"

Severity = Literal["error", "warning", "note"]
Outcome = Literal["completed", "crashed", "hung", "stopped"]
RankState = Literal["waiting", "missing", "computing", "loading", "saving", "finished", "crashed", "frozen", "unknown"]


class Where(msgspec.Struct, frozen=True):
    """A place in the user's source. `line` counts from 1, `column` from 1 in characters; `code` is that line."""

    file: str
    line: int
    function: str = ""
    code: str = ""
    column: int | None = None


class Evidence(msgspec.Struct, frozen=True):
    """One thing observed. `source` says by what: a file and line, stack, record, log, probe, flight-recorder."""

    source: str
    text: str
    rank: int | None = None
    host: str | None = None
    time: float | None = None


class Rival(msgspec.Struct, frozen=True):
    """Another pitfall that could explain the same evidence, and what would tell the two apart."""

    pitfall: str
    confidence: float
    tell_apart: str


class Verdict(msgspec.Struct, frozen=True):
    """The finding that explains the others.

    `sentence` is the whole answer in one sentence; `title` the pitfall's name in words; `why` the reasoning.
    `proven` means that the job cannot go on from this state, or that the cause was seen itself; `confidence`
    (0..1) speaks of the pitfall and the culprits. `evidence` holds indices into the report's list.
    """

    pitfall: str
    layer: str
    title: str
    sentence: str
    confidence: float
    proven: bool
    culprits: tuple[int, ...]
    hosts: tuple[str, ...]
    waiting: tuple[int, ...]
    where: Where | None
    why: str
    fix: tuple[str, ...]
    rivals: tuple[Rival, ...] = ()
    detected_after_s: float | None = None
    evidence: tuple[int, ...] = ()


class Finding(msgspec.Struct, frozen=True):
    """A pitfall seen on some ranks."""

    pitfall: str
    severity: Severity
    message: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    where: Where | None = None
    fix: tuple[str, ...] = ()
    evidence: tuple[int, ...] = ()


class CollectiveRow(msgspec.Struct, frozen=True):
    """The operation that a rank is in. `seq` is the group's own sequence number, None for point-to-point."""

    group: str
    seq: int | None
    op: str
    numel: int | None = None
    dtype: str | None = None


class ExitRow(msgspec.Struct, frozen=True):
    """How a process ended: exit code, or the signal's name; `exception` is its own last one, in one line."""

    code: int | None
    signal: str | None = None
    exception: str | None = None


class RankRow(msgspec.Struct, frozen=True):
    """One line of the roll call: who the rank is, and what it was doing."""

    rank: int | None
    host: str
    pid: int | None
    state: RankState
    step: int | None = None
    phase: str | None = None
    phase_for_s: float | None = None
    collective: CollectiveRow | None = None
    where: Where | None = None
    exit: ExitRow | None = None
    local_rank: int | None = None
    world_size: int | None = None
    stack: tuple[Where, ...] = ()
    devices: tuple[str, ...] = ()
    versions: dict[str, str] = {}


class Job(msgspec.Struct, frozen=True):
    """The job that the report speaks of."""

    world_size: int | None
    hosts: tuple[str, ...]
    command: tuple[str, ...]
    started_at: float | None
    run_dir: str | None


class Incident(msgspec.Struct, frozen=True):
    """A verdict reached while the job ran. `withdrawn_at` is set when the job moved on all the same."""

    attempt: int
    at: float
    verdict: Verdict
    withdrawn_at: float | None = None


class Tool(msgspec.Struct, frozen=True):
    """Who wrote the report."""

    name: str = "rankcall"
    version: str = __version__


class Report(msgspec.Struct, frozen=True):
    """Everything one verb has to say. `data` holds what only that verb has."""

    verb: str
    schema: str = REPORT_SCHEMA
    tool: Tool = Tool()
    job: Job | None = None
    outcome: Outcome | None = None
    verdict: Verdict | None = None
    findings: tuple[Finding, ...] = ()
    ranks: tuple[RankRow, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    incidents: tuple[Incident, ...] = ()
    data: dict[str, object] = {}

    @property
    def exit_code(self) -> int:
        """0: nothing found; 1: a verdict, or a finding of severity warning or error."""
        loud = any(finding.severity != "note" for finding in self.findings)
        return 1 if self.verdict is not None or loud else 0


def report_to_json(report: Report) -> bytes:
    """The report as indented JSON, UTF-8, ending in a newline. Key order is the schema's."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def report_from_json(data: bytes, name: str = "report") -> Report:
    """Read a report back. Raises RankcallError if it is not a report, or one of a newer schema."""
    return decode_document(data, name, Report, REPORT_SCHEMA)


class _SchemaOnly(msgspec.Struct):
    schema: str


def decode_document(data: bytes, name: str, kind: type[_T], schema: str) -> _T:
    """Decode JSON of a versioned schema into `kind`.

    Raises RankcallError with the file's `name` and the offending field: for what is no JSON or cut off, what has
    another or no schema, a newer version of it, and what does not fit the type.
    """
    try:
        found = msgspec.json.decode(data, type=_SchemaOnly).schema
    except msgspec.DecodeError as error:
        kind_of_trouble = "is empty" if not data.strip() else f"is no readable JSON, or was cut off ({error})"
        raise RankcallError(f"{name} {kind_of_trouble}; expected a {schema} file.") from error
    family, _, version = schema.rpartition("/")
    found_family, _, found_version = found.rpartition("/")
    if found_family != family or not found_version.isdigit():
        raise RankcallError(f"{name} has schema {found!r}; expected {schema}.")
    if int(found_version) > int(version):
        raise RankcallError(
            f"{name} was written by a newer rankcall (schema {found}; this one reads up to {schema}). "
            "Upgrade rankcall to read it."
        )
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise RankcallError(f"{name} does not fit schema {schema}: {error}.") from error
