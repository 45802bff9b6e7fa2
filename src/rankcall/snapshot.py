"""The snapshot: all that is known of all ranks at one moment, the input of every diagnosis.

Schema `rankcall.snapshot/1`, explained field by field in `docs/snapshot.md`. Everything that judges reads this and
nothing else, so that a saved snapshot can be judged again, later and elsewhere. Times are seconds since the epoch
by the clock of the machine where the thing was seen; durations are seconds.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rankcall import __version__
from rankcall.findings import decode_document

SNAPSHOT_SCHEMA = "rankcall.snapshot/1"

Phase = Literal[
    "init", "compile", "data", "forward", "backward", "optimizer", "collective", "evaluate", "save", "load",
    "idle", "exit",
]  # fmt: skip
ProcessState = Literal["running", "sleeping", "stopped", "traced", "uninterruptible", "zombie", "gone", "unknown"]
WaitKind = Literal["collective", "p2p", "new-group", "init", "device"]
EventKind = Literal[
    "collective",  # a Python-visible collective was entered
    "send",  # a point-to-point send was started (isend too)
    "recv",
    "wait",  # Work.wait on an earlier asynchronous operation
    "forward",  # a wrapped model's forward with gradients
    "eval-forward",  # a wrapped model's forward without gradients
    "backward",
    "step",  # an optimizer step
    "scaler-step",  # GradScaler.step; without a `step` after it, the step was skipped
    "batch",  # a DataLoader handed out a batch
    "loader-end",  # a DataLoader had no more
    "save",
    "load",
    "init",  # init_process_group
    "new-group",
    "destroy",  # destroy_process_group
    "compile",
    "exception",  # an exception passed through, or was being handled at, a place that is recorded
    "exit",
]


class Frame(msgspec.Struct, frozen=True):
    """One line of a stack, or a call site. `line` counts from 1; 0 means unknown."""

    file: str
    line: int
    function: str = ""


class Wait(msgspec.Struct, frozen=True):
    """A thread inside a blocking call.

    For a collective the key is (`group`, `backend`, `seq`); `seq` is c10d's own number of the awaited operation.
    For point-to-point, `op` is send or recv, `peer` the other's global rank and `nth` counts this process's
    operations of that direction, peer and tag from 1. `op` is the algorithm's name ("all_reduce"), `outer` the
    public function the user called ("all_gather_object"). `numel` is the number of elements this rank gives,
    `sizes` those of every tensor where that is more than one. `root` is src or dst as a global rank.
    `source`: who saw it: the record, the flight recorder, or the device behind a synchronisation.
    """

    kind: WaitKind
    op: str
    group: str = ""
    backend: str = ""
    seq: int | None = None
    outer: str = ""
    numel: int | None = None
    sizes: tuple[int, ...] = ()
    dtype: str | None = None
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    nth: int | None = None
    site: Frame | None = None
    since: float | None = None
    source: Literal["record", "flight-recorder", "device", "stack"] = "record"


class Thread(msgspec.Struct, frozen=True):
    """What one thread of a rank is doing. `stable_for` is how long its record has not changed, over at least two
    looks; `stack` is innermost first and empty when it could not be had. `busy` is the share of one core that it
    used or waited for over the last look (None: unknown): on a crowded machine a busy loop gets little, but wants
    all of one."""

    tid: int
    name: str = ""
    main: bool = False
    phase: Phase = "idle"
    phase_since: float | None = None
    phase_site: Frame | None = None
    step: int | None = None
    wait: Wait | None = None
    stable_for: float = 0.0
    stack: tuple[Frame, ...] = ()
    busy: float | None = None
    collectives: int = 0  # how many operations this thread has started


class Group(msgspec.Struct, frozen=True):
    """A process group as one rank knows it. `key` is equal on all its members: the member ranks and which of the
    groups with these members and backend it is ("0-3#0"). `enqueued`, `started`, `finished` are sequence numbers
    (the largest seen; a lower bound when only sampled); None: not known. gloo knows no `started`."""

    key: str
    name: str = ""
    description: str = ""
    backend: str = ""
    members: tuple[int, ...] = ()
    incarnation: int = 0
    enqueued: int | None = None
    started: int | None = None
    finished: int | None = None
    destroyed: bool = False


class Event(msgspec.Struct, frozen=True):
    """One entry of a rank's ring. `index` counts all events of the process from 0; `place` counts only those that
    ranks of one program share (collectives, forwards, backwards, steps), so that rings can be laid side by side."""

    index: int
    time: float
    kind: EventKind
    place: int | None = None
    op: str = ""
    outer: str = ""
    group: str = ""
    seq: int | None = None
    numel: int | None = None
    dtype: str | None = None
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    nth: int | None = None
    step: int | None = None
    site: Frame | None = None
    ended: float | None = None  # when its completion was noticed; None: not completed, or nobody noticed


class Counters(msgspec.Struct, frozen=True):
    """How often each thing happened since the process became a rank."""

    events: int = 0
    batches: int = 0
    loader_ends: int = 0
    forwards: int = 0
    eval_forwards: int = 0
    backwards: int = 0
    optimizer_steps: int = 0
    scaler_steps: int = 0
    collectives: int = 0
    exceptions: int = 0


class ExceptionNote(msgspec.Struct, frozen=True):
    """An exception of the program: `frames` outermost first. `chain` holds the one-line texts of its causes.
    `parameters` are the names of a DDP model's parameters that the message speaks of by number."""

    type: str
    message: str
    frames: tuple[Frame, ...] = ()
    chain: tuple[str, ...] = ()
    time: float | None = None
    parameters: tuple[str, ...] = ()


class ExitNote(msgspec.Struct, frozen=True):
    """What a rank wrote about its own end, while Python still ran.

    `kind`: exception (uncaught), exit (sys.exit, exit, os._exit) or finish (the interpreter came to its end).
    `site` is the user's line that ended it; for finish None.
    """

    kind: Literal["exception", "exit", "finish"]
    time: float
    code: int | None = None
    site: Frame | None = None
    exception: ExceptionNote | None = None


class Exit(msgspec.Struct, frozen=True):
    """How a process ended, seen from outside. `killed_by_launcher`: the signal came from the launcher's own
    clean-up, so it says nothing about the cause. `core`: a core file was written."""

    code: int | None = None
    signal: int | None = None
    time: float | None = None
    killed_by_launcher: bool = False
    oom_killed: bool = False  # the kernel's or the cgroup's log says so


class Child(msgspec.Struct, frozen=True):
    """A process started by a rank (a DataLoader worker, say). `kind` is loader-worker, python or other."""

    pid: int
    kind: str
    state: ProcessState
    name: str = ""
    stack: tuple[Frame, ...] = ()
    blocked_in: str | None = None
    busy: float | None = None


class Dump(msgspec.Struct, frozen=True):
    """The flight-recorder dump that a process's events were read from.

    `stale`: the other ranks finished operations that this dump has not seen, so it was taken before theirs; what
    the rank did after `newest` is not known. `whole`: it still held the first operation of the process. `behind`: ranks
    that do the same work have begun more operations, or there are none to compare it with.
    """

    file: str
    version: str = ""
    entries: int = 0
    oldest: float | None = None
    newest: float | None = None
    written: float | None = None  # when the file was
    whole: bool = False
    stale: bool = False
    behind: bool = False


class Process(msgspec.Struct, frozen=True):
    """One process that is, or was started to be, a rank.

    `launcher_rank` is what the launcher gave it, `claimed_rank` what it called init_process_group with;
    `initialized` says how far that got. `master` is the address and port it used, `launcher_master` what the
    launcher had set. `blocked_in` is the system call it sleeps in, in words. `log_tail` are its last lines.
    """

    host: str
    pid: int
    start_time: float = 0.0
    attempt: int = 0
    launcher_rank: int | None = None
    claimed_rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    recorded: bool = True
    initialized: Literal["no", "entered", "done", "destroyed"] = "no"
    backend: str = ""
    master: str = ""
    launcher_master: str = ""
    uses_agent_store: bool = False
    state: ProcessState = "unknown"
    busy: float | None = None
    blocked_in: str | None = None
    threads: tuple[Thread, ...] = ()
    groups: tuple[Group, ...] = ()
    counters: Counters = Counters()
    ring: tuple[Event, ...] = ()
    loop_step: int | None = None  # optimizer steps of the first optimizer; None when it cannot be told
    last_change: float | None = None
    exit: Exit | None = None
    exit_note: ExitNote | None = None
    handled: tuple[ExceptionNote, ...] = ()  # exceptions that passed a recorded place and did not end the process
    children: tuple[Child, ...] = ()
    command: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    log_tail: tuple[str, ...] = ()
    clock_offset: float = 0.0
    notes: tuple[str, ...] = ()  # what could not be seen, in words
    dump: Dump | None = None

    @property
    def rank(self) -> int | None:
        """The claimed rank if it has one, else the launcher's."""
        return self.claimed_rank if self.claimed_rank is not None else self.launcher_rank


class Shift(msgspec.Struct, frozen=True):
    """Ranks whose calls are those of the others up to a place, and from there on the same again, moved by `count`:
    they `skipped` the calls that `calls` begins to tell, or made them in addition (`extra`). `last_common` is the
    call before them; `others` are some of the ranks that agree. `swapped`: two calls in
    the other order. `differs`: another call at one place, and nothing after it is the same again. Of these two,
    `calls` are theirs and the others'."""

    kind: Literal["skipped", "extra", "swapped", "differs"]
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    group: str
    count: int
    calls: tuple[Event, ...] = ()
    last_common: Event | None = None


class PortHolder(msgspec.Struct, frozen=True):
    """Who listens on a port of this host."""

    port: int
    pid: int | None
    command: str


class Snapshot(msgspec.Struct, frozen=True):
    """All ranks at one moment.

    `reason`: why it was taken: stall (the watcher saw no progress), exit (a rank ended), end (the job is over),
    interrupt (Ctrl-C), request. `origin`: files when it was put together from dumps and stacks that a job left
    behind, so that nobody looked at its processes. `quiet_for` is how long no rank has moved, `stall_after` the
    limit in force.
    `outcome` is None while the job runs. `sources` holds the text of the user's files that sites point into.
    `launcher_error` is the launcher's own failure, beside or before the ranks (a port in use, say).
    """

    taken_at: float
    schema: str = SNAPSHOT_SCHEMA
    version: str = __version__
    origin: Literal["watch", "files"] = "watch"
    reason: Literal["stall", "exit", "end", "interrupt", "request"] = "request"
    command: tuple[str, ...] = ()
    run_dir: str | None = None
    started_at: float | None = None
    world_size: int | None = None
    attempt: int = 0
    outcome: Literal["completed", "crashed", "hung", "stopped"] | None = None
    quiet_for: float = 0.0
    stall_after: float | None = None
    stalled: bool = False  # quiet_for has passed the limit
    processes: tuple[Process, ...] = ()
    sources: dict[str, str] = {}
    ports: tuple[PortHolder, ...] = ()
    launcher_error: ExceptionNote | None = None
    last_lines: tuple[str, ...] = ()  # kernel or cgroup lines about killed processes
    notes: tuple[str, ...] = ()
    # Members by group key, as runs (first, last): a large job's groups are told once, not once a rank.
    group_members: dict[str, tuple[tuple[int, int], ...]] = {}
    shifts: tuple[Shift, ...] = ()


def snapshot_to_json(snapshot: Snapshot) -> bytes:
    """The snapshot as compact JSON, UTF-8."""
    return msgspec.json.encode(snapshot)


def snapshot_from_json(data: bytes, name: str = "snapshot") -> Snapshot:
    """Read a snapshot back. Raises RankcallError if it is not one, is cut off, or of a newer schema."""
    return decode_document(data, name, Snapshot, SNAPSHOT_SCHEMA)
