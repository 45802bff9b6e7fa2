"""Whose stack it is: rank, host and pid from what people write around dumps (headings, labels before lines, command
lines, file names). Untrusted text; where nothing says it, nothing is guessed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

MOST_RANKS = 1_000_000
_LONGEST_HEADING = 200

_RANK = re.compile(r"(?<![A-Za-z_])(?:global[ _-]?)?rank[ _:=#.-]{0,3}0{0,6}(\d{1,7})(?![\d.])", re.IGNORECASE)
_LOCAL_RANK = re.compile(r"local[ _-]?rank[ _:=#.-]{0,3}0{0,6}(\d{1,7})(?!\d)", re.IGNORECASE)
_PROCESS_ID = re.compile(r"\bp(?:rocess )?id[ :=#]{0,3}(\d{1,10})(?!\d)", re.IGNORECASE)
_HOST = re.compile(
    r"(?:\bhost(?:name)?|\bnode(?:name)?|\bon|@)[ :=]{1,2}([A-Za-z][\w.-]{0,100})|@([A-Za-z][\w.-]{0,100})", re.I
)
_WORD = re.compile(r"[A-Za-z][\w.-]{0,100}")
_ABOUT_STACKS = re.compile(
    r"\b(stacks?|(?:back)?traces?|stack-?traces?|dumps?|py-?spy|pystack|gdb|bt)\b", re.IGNORECASE
)
_DECORATION = "=-#*<>:_~+| \t`"
_DECORATED = re.compile(r"\s*(?:[=\-#*+]{2,}|#{1,6} |>{2,}|<summary>)")

# `FOO=1 RANK=3 python train.py --local-rank 0`
_COMMAND_RANK = re.compile(r"(?:^|\s)(?:RANK=|--(?:global[_-])?rank[= ])(\d{1,7})(?!\S)")
_COMMAND_LOCAL_RANK = re.compile(r"(?:^|\s)(?:LOCAL_RANK=|--local[_-]rank[= ])(\d{1,7})(?!\S)")

_NAME_RANK = re.compile(r"(?<![A-Za-z])rank[-_.=]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NAME_LOCAL_RANK = re.compile(r"local[-_.]?rank[-_.=]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NAME_SHORT_RANK = re.compile(r"(?:^|[-_.])r(\d{1,6})(?=[-_.]|$)", re.IGNORECASE)
_NAME_PID = re.compile(r"(?:^|[-_.])pid[-_.=]?(\d{1,10})(?!\d)", re.IGNORECASE)
_NAME_NUMBER = re.compile(
    r"(?:stacks?|stack_?traces?|dumps?|py-?spy|pystack|gdb|traces?|bt|faulthandler)?[-_.]?(\d{1,5})", re.IGNORECASE
)
_NAME_SUFFIX = re.compile(r"[A-Za-z_]\.(\d{1,4})$")
_NAME_HOST = re.compile(r"([A-Za-z][\w.-]{0,100}?)[-_.](?:global[-_.]?|local[-_.]?)?rank[-_.=]?\d", re.IGNORECASE)
_GENERIC = re.compile(
    r"(?:stacks?|stack-?traces?|traces?|dumps?|py-?spy|pystack|gdb|bt|logs?|out|err|output|faulthandler|threads?|hang|job"
    r"|debug|global|local|pid|rank|train|txt|json|[-\d_.])+",
    re.IGNORECASE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose the stacks are, as far as something says so. `number` is a bare one (`===== 3 =====`): a rank, if it is not
    the pid of what follows."""

    rank: int | None = None
    local_rank: int | None = None
    host: str = ""
    pid: int | None = None
    number: int | None = None

    def over(self, outer: Origin) -> Origin:
        """This one, with what it does not say taken from `outer`. Another rank's pid and local rank are not taken."""
        if self.rank is not None or self.number is not None:
            return replace(self, host=self.host or outer.host)
        return Origin(
            outer.rank,
            self.local_rank if self.local_rank is not None else outer.local_rank,
            self.host or outer.host,
            self.pid if self.pid is not None else outer.pid,
            outer.number,
        )

    @property
    def says_something(self) -> bool:
        return self != Origin()


def origin_of_heading(line: str) -> Origin | None:
    """What a heading says: `===== rank 3 (host-a) =====`, `## Rank 3`, `==> rank3.txt <==`, `Stack of rank 3:`.
    None for a line that is none."""
    if len(line) > _LONGEST_HEADING or not (line.lstrip()[:1] in _DECORATION or "rank" in line.lower()):
        return None
    decorated = _DECORATED.match(line) is not None
    core = line.replace("<summary>", "").replace("</summary>", "").strip(_DECORATION)
    if not core:
        return None
    rank = _RANK.search(_LOCAL_RANK.sub("", core))
    if rank is not None:
        alone = not rank.string[: rank.start()].strip() and not rank.string[rank.end() :].strip(": ")
        about = line.rstrip().endswith(":") and _ABOUT_STACKS.search(core) is not None
        if not (decorated or alone or about):
            return None
        return Origin(_number(rank.group(1)), _first(_LOCAL_RANK, core), _host(core), _first(_PROCESS_ID, core))
    if not decorated:
        return None
    pid, local = _first(_PROCESS_ID, core), _first(_LOCAL_RANK, core)
    if pid is not None or local is not None:
        return Origin(local_rank=local, host=_host(core), pid=pid)
    if core.isdecimal() and len(core) <= 10:
        return Origin(number=int(core))
    if line.lstrip().startswith("==>") or "/" in core or core.endswith((".txt", ".log", ".out", ".json")):
        return origin_of_name(core)
    host = _host(core)
    if not host and _WORD.fullmatch(core) and any(sign.isdigit() or sign in ".-" for sign in core):
        host = core
    return Origin(host=host) if host else None


def origin_of_command(command: str) -> Origin:
    """RANK=3 or --rank 3 in a command line, and the same for the local rank."""
    return Origin(rank=_first(_COMMAND_RANK, command), local_rank=_first(_COMMAND_LOCAL_RANK, command))


def origin_of_name(name: str) -> Origin:
    """What a file's name says: rank3.txt, stack_rank_3.json, 3.txt, host-a_rank3.pyspy, rank_3/stacks.txt."""
    path = PurePosixPath(name[-1_000:].replace("\\", "/"))
    base = path.name
    pid, local = _first(_NAME_PID, base), _first(_NAME_LOCAL_RANK, base)
    without_local = _NAME_LOCAL_RANK.sub("", base)
    rank = _first(_NAME_RANK, without_local)
    host = _host_of_name(base)
    if rank is None:
        rank = _first(_NAME_SHORT_RANK, without_local)
    number = None
    if rank is None and local is None and pid is None:
        number = _bare_number(base)
    if rank is None and number is None:
        folders = [_first(_NAME_RANK, _NAME_LOCAL_RANK.sub("", part)) for part in path.parts[:-1][-4:]]
        rank = next((found for found in reversed(folders) if found is not None), None)
    return Origin(rank, local, host, pid, number)


def _bare_number(base: str) -> int | None:
    """3.txt, stack_3.json, job.out.3: the only number of the name, and no large one, which would be a pid."""
    if suffix := _NAME_SUFFIX.search(base):
        return int(suffix.group(1))
    stem = base
    for _ in range(3):
        if _NAME_NUMBER.fullmatch(stem):
            break
        stem = stem.rpartition(".")[0]
    found = _NAME_NUMBER.fullmatch(stem)
    return int(found.group(1)) if found is not None else None


def _host_of_name(base: str) -> str:
    found = _NAME_HOST.match(base)
    host = found.group(1) if found is not None else ""
    return "" if _GENERIC.fullmatch(host) else host


def _host(core: str) -> str:
    found = _HOST.search(core)
    if found is not None:
        return (found.group(1) or found.group(2)).rstrip(".-")
    inside = re.search(r"\(([A-Za-z][\w.-]{0,100})\)", core)
    return inside.group(1) if inside is not None else ""


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return _number(found.group(1)) if found is not None else None


def _number(text: str) -> int | None:
    value = int(text)
    return value if value < MOST_RANKS or len(text) > 7 else None
