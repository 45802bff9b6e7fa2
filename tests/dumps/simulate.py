"""Runs the programs of all ranks of a job, and says when each operation was enqueued, launched and done.

It knows two kinds of communication library, and nothing of any diagnosis:

- nccl: an operation is enqueued, and the host goes on. On the device each process group has a stream of its own; an
  operation is launched when what was on the compute stream before it, and what was on the group's stream before it, is
  done. A program that awaits an operation lets its compute stream wait, not its host. The host stops where it asks the
  device for a value.
- gloo: the host waits for each operation it awaits.

An operation of a group is done when every member has launched its own operation of that number and all of them fit
together. Where two do not fit, it is never done, on any rank. Nothing here is a guess about hangs: the run goes on
until nothing can move, and what is left then is the truth.

No clock is simulated: times follow from what each thing waits for, so ranks can be run one after another, each as far
as it comes. Times are seconds since the job began.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Backend = Literal["nccl", "gloo"]

ELEMENT_BYTES = {"Byte": 1, "Half": 2, "BFloat16": 2, "Float": 4, "Int": 4, "Long": 8, "Double": 8}
# What the host pays for enqueuing one operation, and what the slowest of two links moves in a second.
ENQUEUE_S = 40e-6
BYTES_PER_S = 20e9
LATENCY_S = 30e-6
# NCCL copies a small message into the receiver's buffer: its sender does not wait for anybody.
EAGER_BYTES = 64 * 1024

# Spellings of one algorithm: ranks that enter it under different names still fit together.
_ALGORITHM = {
    "all_reduce_barrier": "all_reduce",
    "all_gather": "_all_gather_base",
    "reduce_scatter": "_reduce_scatter_base",
}


@dataclass(frozen=True)
class Site:
    """Where in the code an operation is called. `frames`: (function, file, line), innermost first; none for an
    operation that is started in C++ by a thread without Python. `user` is the first frame outside of torch."""

    frames: tuple[tuple[str, str, int], ...] = ()
    user: tuple[str, int] | None = None


@dataclass(frozen=True)
class Part:
    """One send or recv; the peer is that many places further along the group's ranks, or before (negative)."""

    direction: Literal["send", "recv"]
    offset: int


@dataclass(frozen=True)
class Op:
    """An operation as a program calls it. `axis` names the group relative to the rank. `root` counts within the group.

    `awaited`: the program waits for it at once. `parts`: a point-to-point operation; `batched`: all its parts in one
    group call. `occasional`: not part of every step. `varies`: its sizes differ from step to step.
    """

    kind: str
    axis: str
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    dtype: str = "Float"
    site: Site = Site()
    root: int | None = None
    awaited: bool = True
    parts: tuple[Part, ...] = ()
    batched: bool = False
    occasional: bool = False
    varies: bool = False
    thread: str = "pt_main_thread"
    # What must be equal on all members; made from the rest.
    signature: tuple[object, ...] = field(init=False, compare=False)
    nbytes: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        algorithm = _ALGORITHM.get(self.kind, self.kind)
        width = ELEMENT_BYTES[self.dtype]
        nbytes = max(_numel(self.inputs), _numel(self.outputs)) * width
        if algorithm == "all_to_all":  # the splits may differ
            signature: tuple[object, ...] = (algorithm, width)
        else:
            signature = (algorithm, _numel(self.inputs), _numel(self.outputs), width, self.root)
        object.__setattr__(self, "signature", signature)
        object.__setattr__(self, "nbytes", nbytes)


def _numel(shapes: tuple[tuple[int, ...], ...]) -> int:
    total = 0
    for shape in shapes:
        product = 1
        for size in shape:
            product *= size
        total += product
    return total


# --- what a program is made of -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compute:
    """Kernels on the compute stream (gloo: work of the host), for about that many seconds."""

    seconds: float


@dataclass(frozen=True)
class Host:
    """Work of the host alone, for about that many seconds: the loader, Python."""

    seconds: float


@dataclass(frozen=True)
class Issue:
    """Call an operation."""

    op: Op


@dataclass(frozen=True)
class Wait:
    """Wait for all operations that were called without waiting."""


@dataclass(frozen=True)
class Sync:
    """The host waits for the compute stream (`.item()`)."""


@dataclass(frozen=True)
class Stuck:
    """The host never comes back from the user's code."""


Instruction = Compute | Host | Issue | Wait | Sync | Stuck
Program = Sequence[Instruction]


# --- groups ------------------------------------------------------------------------------------------------------


@dataclass
class Group:
    """A process group. `incarnation` counts the init_process_group calls that the process has seen before."""

    index: int
    name: str
    description: str
    ranks: tuple[int, ...]
    incarnation: int = 0
    place: dict[int, int] = field(init=False)  # a member's rank within the group
    text: str = field(init=False)  # the ranks as torch writes them

    def __post_init__(self) -> None:
        self.place = {rank: place for place, rank in enumerate(self.ranks)}
        self.text = str(list(self.ranks))


@dataclass
class Layout:
    """All groups of a job, in the order of their creation, and each rank's group by axis name."""

    world: int
    groups: list[Group]
    axes: dict[str, list[Group]]  # by rank
    ids: list[dict[int, int]] = field(default_factory=list)  # a rank's own number (pg_id) of a group, by its index

    def __post_init__(self) -> None:
        self.ids = [{} for _ in range(self.world)]
        for group in self.groups:
            for rank in group.ranks:
                self.ids[rank][group.index] = len(self.ids[rank])

    def group(self, axis: str, rank: int) -> Group:
        return self.axes[axis][rank]


# --- the run -----------------------------------------------------------------------------------------------------


class Node:
    """A moment that is known once everything it waits for is known: the latest of these, plus `delay`."""

    __slots__ = ("base", "delay", "missing", "then", "time")

    def __init__(self, base: float = 0.0, delay: float = 0.0, missing: int = 0) -> None:
        self.time: float | None = None
        self.base = base
        self.delay = delay
        self.missing = missing
        self.then: list[Node | RankRun] = []


class Record:
    """One entry of a rank's flight recorder. `launch` and `done` are None where the recorder has no work to look at:
    the parts of a batch. `instruction` is the place in the rank's program."""

    __slots__ = (
        "created", "done", "group", "instruction", "is_p2p", "launch", "name", "op", "op_id", "p2p_seq", "seq", "sized",
    )  # fmt: skip

    def __init__(
        self, group: Group, op: Op, name: str, numbers: list[int], created: float, instruction: int, is_p2p: bool
    ) -> None:
        self.group = group
        self.op = op
        self.name = name
        self.seq, self.p2p_seq, self.op_id = numbers
        self.created = created
        self.instruction = instruction
        self.is_p2p = is_p2p
        self.launch: Node | None = None
        self.done: Node | None = None
        self.sized = True  # the entry that closes a batch has no sizes of its own


class Meeting:
    """The operations of a group with one number, or the nth send and recv of a channel."""

    __slots__ = ("broken", "hub", "members", "root", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.members: dict[int, tuple[Record, Node]] = {}  # by rank; for a channel by 0 (send) and 1 (recv)
        self.broken = False
        # Open until all members have come, or the root has; then they follow from the launches.
        self.hub = Node(missing=1)
        self.root = Node(missing=1)


class RankRun:
    """A rank, and how far it has come."""

    __slots__ = (
        "at", "front", "host", "numbers", "offset", "pending", "program", "random", "rank", "records", "speed", "state",
        "streams",
    )  # fmt: skip

    def __init__(self, rank: int, program: Program, source: random.Random) -> None:
        self.rank = rank
        self.program = program
        self.random = source
        self.speed = source.uniform(0.9, 1.2)
        self.at = 0
        self.host = source.uniform(0.0, 0.05)
        # The compute stream is done `offset` seconds after `front`.
        self.front = Node()
        self.front.time = 0.0
        self.offset = 0.0
        self.streams: dict[object, Node] = {}
        self.pending: list[Node] = []
        self.numbers: dict[int, list[int]] = {}  # by group index: collectives, point-to-point launches, operations
        self.records: list[Record] = []
        self.state: Literal["running", "waiting", "stuck", "finished"] = "running"


class Simulation:
    """A job: `programs` by rank. Call `run` once; then read `ranks`.

    `start` gives a rank's counters before its first operation (by group index), for a program that is the end of a
    longer one.
    """

    def __init__(
        self,
        layout: Layout,
        programs: Sequence[Program],
        backend: Backend,
        seed: int,
        start: Sequence[dict[int, list[int]]] | None = None,
    ) -> None:
        self.layout = layout
        self.backend = backend
        source = random.Random(seed)
        self.ranks = [RankRun(rank, program, random.Random(source.random())) for rank, program in enumerate(programs)]
        for run, numbers in zip(self.ranks, start or (), strict=False):
            run.numbers = {group: list(counts) for group, counts in numbers.items()}
        self.meetings: dict[tuple[int, int], Meeting] = {}
        self.channels: dict[tuple[object, ...], list[Meeting]] = {}
        self._channel_counts: dict[tuple[object, ...], int] = {}
        self._names: dict[tuple[str, int, int], str] = {}
        self._ready: deque[RankRun] = deque()

    def run(self) -> Simulation:
        self._ready.extend(self.ranks)
        while self._ready:
            self._advance(self._ready.popleft())
        return self

    @property
    def ended(self) -> bool:
        """Every rank came to the end of its program."""
        return all(run.state == "finished" for run in self.ranks)

    @property
    def last_moment(self) -> float:
        """When the last thing happened."""
        last = 0.0
        for run in self.ranks:
            last = max(last, run.host)
            for record in run.records:
                if record.done is not None and record.done.time is not None:
                    last = max(last, record.done.time)
        return last

    def unfinished(self, rank: int) -> list[Record]:
        """What this rank has enqueued that is not done, in order."""
        return [each for each in self.ranks[rank].records if each.done is not None and each.done.time is None]

    def waits_for(self, rank: int) -> set[int]:
        """The ranks that this one's launched operations lack: those that have not launched theirs."""
        found: set[int] = set()
        for record in self.unfinished(rank):
            if record.launch is not None and record.launch.time is not None:
                found |= self.lacking(rank, record)
        return found

    def lacking(self, rank: int, record: Record) -> set[int]:
        """The members that have not launched the operation of `record`, an entry of `rank`."""
        if record.is_p2p:
            return self._lacking_parts(rank, record)
        meeting = self.meetings[(record.group.index, record.seq)]
        return {
            member
            for member in record.group.ranks
            if member not in meeting.members or meeting.members[member][1].time is None
        }

    # --- moving on -------------------------------------------------------------------------------------------

    def _advance(self, run: RankRun) -> None:
        """Run a rank's program until it has to wait for something that is not known yet."""
        device = self.backend == "nccl"
        run.state = "running"
        program = run.program
        while run.at < len(program):
            instruction = program[run.at]
            kind = type(instruction)
            if kind is Issue:
                done = self._issue(run, instruction.op)
                run.at += 1
                if instruction.op.awaited:
                    if device:
                        run.front, run.offset = done, 0.0
                    elif not self._host_waits(run, [done]):
                        return
                else:
                    run.pending.append(done)
            elif kind is Compute:
                seconds = instruction.seconds * run.speed * (0.95 + 0.1 * run.random.random())
                if device:
                    if run.front.time is not None and run.front.time + run.offset < run.host:
                        run.front, run.offset = Node(), 0.0
                        run.front.time = run.host  # the stream stood idle
                    run.offset += seconds
                else:
                    run.host += seconds
                run.at += 1
            elif kind is Wait:
                pending, run.pending = run.pending, []
                run.at += 1
                if device:
                    joined = Node()
                    _follow(joined, run.front, run.offset)
                    for node in pending:
                        _follow(joined, node)
                    self._settle(joined)
                    run.front, run.offset = joined, 0.0
                elif not self._host_waits(run, pending):
                    return
            elif kind is Sync:
                run.at += 1
                if device:
                    if run.front.time is None:
                        run.front.then.append(run)
                        run.state = "waiting"
                        return
                    run.host = max(run.host, run.front.time + run.offset)
            elif kind is Host:
                run.host += instruction.seconds * run.speed * (0.5 + run.random.random())
                run.at += 1
            else:
                run.state = "stuck"
                return
        run.state = "finished"

    def _host_waits(self, run: RankRun, nodes: list[Node]) -> bool:
        """Let the host wait for all of these; False if it has to stop here for now."""
        joined = Node(base=run.host)
        for node in nodes:
            _follow(joined, node)
        self._settle(joined)
        run.front, run.offset = joined, 0.0
        if joined.time is None:
            joined.then.append(run)
            run.state = "waiting"
            return False
        run.host = joined.time
        return True

    def _settle(self, node: Node) -> None:
        """Give a node its time if it waits for nothing any more, and then those that wait for it."""
        if node.missing or node.time is not None:
            return
        stack = [node]
        while stack:
            node = stack.pop()
            time = node.time = node.base + node.delay
            for follower in node.then:
                if isinstance(follower, RankRun):
                    if self.backend == "nccl":
                        follower.host = max(follower.host, time + follower.offset)
                    else:
                        follower.host = max(follower.host, time)
                    self._ready.append(follower)
                    continue
                if time > follower.base:
                    follower.base = time
                follower.missing -= 1
                if not follower.missing:
                    stack.append(follower)
            node.then = []

    # --- operations ------------------------------------------------------------------------------------------

    def _issue(self, run: RankRun, op: Op) -> Node:
        """Enqueue an operation; the node of its end."""
        run.host += ENQUEUE_S
        group = self.layout.group(op.axis, run.rank)
        numbers = run.numbers.setdefault(group.index, [0, 0, 0])
        if op.parts:
            return self._exchange(run, op, group, numbers)
        numbers[0] += 1
        numbers[2] += 1
        record = Record(group, op, op.kind, numbers, run.host, run.at, is_p2p=False)
        record.launch = launch = self._launch(run, ("group", group.index))
        key = (group.index, record.seq)
        meeting = self.meetings.get(key)
        if meeting is None:
            meeting = self.meetings[key] = Meeting(len(group.ranks))
            meeting.hub.delay = LATENCY_S + op.nbytes / BYTES_PER_S
        record.done = self._done_of(meeting, op, group, run.rank, launch)
        self._join(meeting, run.rank, record, launch)
        run.streams[("group", group.index)] = record.done
        run.records.append(record)
        return record.done

    def _launch(self, run: RankRun, stream: object) -> Node:
        launch = Node(base=run.host)
        if self.backend == "nccl":
            _follow(launch, run.front, run.offset)
            before = run.streams.get(stream)
            if before is not None:
                _follow(launch, before)
        self._settle(launch)
        return launch

    def _done_of(self, meeting: Meeting, op: Op, group: Group, rank: int, launch: Node) -> Node:
        """What ends this rank's part. Most operations need everybody. Of a broadcast or reduce, NCCL's senders of a
        small message wait for nobody, receivers wait for the root; gloo's senders wait until they are received."""
        if op.root is None or (self.backend == "nccl" and op.nbytes > EAGER_BYTES):
            return meeting.hub
        is_root = group.place[rank] == op.root
        sends = is_root == (op.kind == "broadcast")
        if is_root and not (sends and self.backend == "nccl"):
            return meeting.hub
        done = Node(delay=meeting.hub.delay)
        _follow(done, launch)
        if not (sends and self.backend == "nccl"):
            _follow(done, meeting.root)
        self._settle(done)
        return done

    def _join(self, meeting: Meeting, rank: int, record: Record, launch: Node) -> None:
        first = next(iter(meeting.members.values()), None)
        meeting.members[rank] = (record, launch)
        if first is not None and first[0].op.signature != record.op.signature:
            meeting.broken = True
        if meeting.broken:
            return
        if record.group.place[rank] == record.op.root:
            _follow(meeting.root, launch)
            self._close(meeting.root)
        if len(meeting.members) == meeting.size:
            for _, other in meeting.members.values():
                _follow(meeting.hub, other)
            self._close(meeting.hub)

    def _close(self, node: Node) -> None:
        """Take away the one thing that kept a node open."""
        node.missing -= 1
        self._settle(node)

    # --- point to point --------------------------------------------------------------------------------------

    def _exchange(self, run: RankRun, op: Op, group: Group, numbers: list[int]) -> Node:
        """A send, a recv, or a batch of them."""
        numbers[1] += 1
        mine = group.place[run.rank]
        stream: object = ("group", group.index)
        if not op.batched:
            peer = mine + op.parts[0].offset
            stream = ("pair", group.index, min(mine, peer), max(mine, peer))
        records = []
        for part in op.parts:
            numbers[2] += 1
            name = self._part_name(part.direction, mine, mine + part.offset)
            records.append(Record(group, op, name, numbers, run.host, run.at, is_p2p=True))
        if op.batched:
            closing = Record(group, op, "coalesced", numbers, run.host, run.at, is_p2p=True)
            closing.sized = False
            records.append(closing)
        launch = self._launch(run, stream)
        done = Node()
        for part in op.parts:
            meeting = self._channel(group, op.batched, mine, mine + part.offset, part.direction)
            _follow(done, meeting.hub)
            meeting.hub.delay = max(meeting.hub.delay, LATENCY_S + op.nbytes / BYTES_PER_S)
            meeting.members[0 if part.direction == "send" else 1] = (records[-1], launch)
            self._pair(meeting)
        self._settle(done)
        records[-1].launch, records[-1].done = launch, done
        run.streams[stream] = done
        run.records.extend(records)
        return done

    def _channel(self, group: Group, batched: bool, mine: int, peer: int, direction: str) -> Meeting:
        """The meeting of this rank's next send to, or recv from, that peer."""
        ends = (mine, peer) if direction == "send" else (peer, mine)
        key = (group.index, batched, *ends)
        count = self._channel_counts.get((*key, direction), 0)
        self._channel_counts[(*key, direction)] = count + 1
        meetings = self.channels.setdefault(key, [])
        if count == len(meetings):
            meetings.append(Meeting(2))
        return meetings[count]

    def _pair(self, meeting: Meeting) -> None:
        if len(meeting.members) < 2:
            return
        (send, send_launch), (recv, recv_launch) = meeting.members[0], meeting.members[1]
        if (send.op.nbytes, send.op.dtype) != (recv.op.nbytes, recv.op.dtype):
            meeting.broken = True
            return
        _follow(meeting.hub, send_launch)
        _follow(meeting.hub, recv_launch)
        self._close(meeting.hub)

    def _part_name(self, direction: str, mine: int, peer: int) -> str:
        name = self._names.get((direction, mine, peer))
        if name is None:
            arrow = "->" if direction == "send" else "<-"
            name = self._names[(direction, mine, peer)] = f"{direction} {mine}{arrow}{peer}"
        return name

    def _lacking_parts(self, rank: int, record: Record) -> set[int]:
        group = record.group
        mine = group.place[rank]
        found = set()
        for part in record.op.parts:
            peer = mine + part.offset
            ends = (mine, peer) if part.direction == "send" else (peer, mine)
            for meeting in self.channels[(group.index, record.op.batched, *ends)]:
                own, other = (0, 1) if part.direction == "send" else (1, 0)
                if own in meeting.members and meeting.members[own][0] is record:
                    theirs = meeting.members.get(other)
                    if theirs is None or theirs[1].time is None:
                        found.add(group.ranks[peer])
        return found


def _follow(node: Node, before: Node, delay: float = 0.0) -> None:
    """Let `node` wait for `before`, plus a delay."""
    if before.time is not None:
        node.base = max(node.base, before.time + delay)
        return
    if delay:
        between = Node(delay=delay, missing=1)
        between.then.append(node)
        before.then.append(between)
    else:
        before.then.append(node)
    node.missing += 1
