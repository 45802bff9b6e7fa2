"""What each job in this folder does wrong, as its own comment block says. Runs nothing.

A job is a script with these two lines below its docstring; a file without them is part of another job:

    # job: nproc=4 args="" run_args="--stall-after 5" timeout=60
    # expect: pitfall=uneven-steps also=data-dependent-skip culprits=2 outcome=hung|crashed

`# <- here` at the end of a line marks the best `where`, `# <- also` one that is right too.
README.md explains all fields.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

JOBS = Path(__file__).resolve().parent
OUTCOMES = ("hung", "crashed", "completed")
FORMS = ("torchrun", "module", "command")
SAID_AS = ("verdict", "warning", "note", "nothing")
_JOB_FIELDS = {"nproc", "args", "run_args", "timeout", "form", "module", "files"}
_EXPECT_FIELDS = {"pitfall", "also", "culprits", "outcome", "as", "where"}
_MARK = re.compile(r"#\s*<-\s*(here|also)\b")
_HEAD_LINES = 40


@dataclass(frozen=True)
class Place:
    """A line of a job's source, counted from 1."""

    file: Path
    line: int


@dataclass(frozen=True)
class Label:
    """One job and the answer to it.

    `pitfall` is None for a healthy job; `also` holds names that would be right too. `culprits` are the
    acceptable sets of ranks, the best first; empty: not asked. `here` are the best places, `also_here` other
    right ones; both empty: not asked. `said_as` are the acceptable ways to say it: verdict, warning, note, or
    nothing at all. `form` is torchrun (SCRIPT), module (-m MODULE) or command (it starts its own ranks).
    """

    name: str
    kind: str
    path: Path
    nproc: int
    args: tuple[str, ...]
    run_args: tuple[str, ...]
    timeout: float
    form: str
    module: str
    pitfall: str | None
    also: tuple[str, ...]
    culprits: tuple[frozenset[int], ...]
    outcomes: tuple[str, ...]
    said_as: tuple[str, ...]
    here: tuple[Place, ...]
    also_here: tuple[Place, ...]

    @property
    def healthy(self) -> bool:
        """True if nothing may be found."""
        return self.pitfall is None

    @property
    def pitfalls(self) -> tuple[str, ...]:
        """Every name that is right, the best first."""
        return () if self.pitfall is None else (self.pitfall, *self.also)

    @property
    def may_hang(self) -> bool:
        """True if the job may never end by itself."""
        return "hung" in self.outcomes

    @property
    def working_folder(self) -> Path:
        """Where to start it: for a module the folder that holds its package."""
        return self.path.parents[self.module.count(".")] if self.form == "module" else self.path.parent

    def target(self) -> list[str]:
        """What to put behind the launcher's own options: the script or module, and its arguments."""
        if self.form == "module":
            return ["-m", self.module, *self.args]
        return [str(self.path), *self.args]


def _fields(text: str, known: set[str], place: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for word in shlex.split(text):
        key, equals, value = word.partition("=")
        if key not in known or not (equals or word == "healthy"):
            raise ValueError(f"{place}: {word!r} is no field; known are {', '.join(sorted(known))}")
        fields[key] = value
    return fields


def _one_of(values: str, allowed: tuple[str, ...], place: str) -> tuple[str, ...]:
    chosen = tuple(values.split("|"))
    for value in chosen:
        if value not in allowed:
            raise ValueError(f"{place}: {value!r} is none of {', '.join(allowed)}")
    return chosen


def _rank_sets(text: str, nproc: int) -> tuple[frozenset[int], ...]:
    """Read "2", "0,1", "all", or alternatives of these parted by "|"."""
    if not text or text == "any":
        return ()
    every = frozenset(range(nproc))
    return tuple(every if one == "all" else frozenset(int(rank) for rank in one.split(",")) for one in text.split("|"))


def _marks(files: list[Path]) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
    found: dict[str, list[Place]] = {"here": [], "also": []}
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if mark := _MARK.search(line):
                found[mark.group(1)].append(Place(file, number))
    return tuple(found["here"]), tuple(found["also"])


def read_label(path: Path) -> Label | None:
    """The label of one script; None if it is no job. Raises ValueError for a block that cannot be read."""
    head = path.read_text(encoding="utf-8").splitlines()[:_HEAD_LINES]
    job_line = next((line for line in head if line.startswith("# job:")), None)
    if job_line is None:
        return None
    place = str(path.relative_to(JOBS))
    expect_line = next((line for line in head if line.startswith("# expect:")), None)
    if expect_line is None:
        raise ValueError(f"{place}: has a '# job:' line but no '# expect:' line")
    job = _fields(job_line.removeprefix("# job:"), _JOB_FIELDS, place)
    expect = _fields(expect_line.removeprefix("# expect:"), _EXPECT_FIELDS | {"healthy"}, place)
    healthy = "healthy" in expect
    if healthy == ("pitfall" in expect):
        raise ValueError(f"{place}: expects either 'healthy' or a pitfall")
    nproc = int(job.get("nproc", "2"))
    form = "module" if "module" in job else job.get("form", "torchrun")
    here, also_here = _marks([path, *(path.parent / one for one in job.get("files", "").split(",") if one)])
    return Label(
        name=place.removesuffix(".py").removeprefix("faults/"),
        kind=path.relative_to(JOBS / "faults").parts[0] if "faults" in path.parts else "healthy",
        path=path,
        nproc=nproc,
        args=tuple(shlex.split(job.get("args", ""))),
        run_args=tuple(shlex.split(job.get("run_args", ""))),
        timeout=float(job.get("timeout", "60")),
        form=_one_of(form, FORMS, place)[0],
        module=job.get("module", ""),
        pitfall=None if healthy else expect["pitfall"],
        also=tuple(one for one in expect.get("also", "").split(",") if one),
        culprits=_rank_sets(expect.get("culprits", ""), nproc),
        outcomes=_one_of(expect.get("outcome", "completed"), OUTCOMES, place),
        said_as=_one_of(expect.get("as", "nothing" if healthy else "verdict"), SAID_AS, place),
        here=here,
        also_here=also_here,
    )


def all_jobs(kind: str | None = None) -> list[Label]:
    """Every job, faults first, by name; with `kind` ("uneven-steps", "healthy") only those."""
    paths = sorted((JOBS / "faults").rglob("*.py")) + sorted((JOBS / "healthy").rglob("*.py"))
    labels = [label for path in paths if (label := read_label(path)) is not None]
    return [label for label in labels if kind is None or label.kind == kind]
