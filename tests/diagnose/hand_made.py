"""Snapshots by hand: a small language in which a test says what each rank did, and where it stands now.

Numbers are given out as c10d gives them: one a collective of a group, also for those that DDP starts in C++.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rankcall.snapshot import (
    Child,
    Counters,
    Event,
    ExceptionNote,
    Exit,
    ExitNote,
    Frame,
    Group,
    PortHolder,
    Process,
    Snapshot,
    Thread,
    Wait,
)

SCRIPT = "/home/me/train.py"
TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
START = 1_000_000.0
_COUNTED = {
    "batch": "batches", "loader-end": "loader_ends", "forward": "forwards", "eval-forward": "eval_forwards",
    "backward": "backwards", "step": "optimizer_steps", "scaler-step": "scaler_steps", "collective": "collectives",
    "exception": "exceptions",
}  # fmt: skip
_COMPARED = ("collective", "send", "recv", "forward", "eval-forward", "backward", "step")


def frame(line: int, function: str = "main", file: str = SCRIPT) -> Frame:
    return Frame(file, line, function)


def torch_frame(path: str = "distributed/distributed_c10d.py", function: str = "all_reduce") -> Frame:
    return Frame(f"{TORCH}/{path}", 100, function)


class Rank:
    """One rank, told in the order of what it did. `step_s` is the time between two events."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.time = START + 0.001 * rank
        self.events: list[Event] = []
        self.places = 0
        self.counts: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self.finished: dict[str, int] = {}
        self.pairs: dict[tuple[str, int, int], int] = {}
        self.step_number = 0
        self.thread: dict[str, Any] = {"tid": 1, "main": True, "phase": "idle", "stable_for": 6.0, "busy": 0.0}
        self.facts: dict[str, Any] = {
            "host": "host-a", "pid": 1000 + rank, "start_time": START, "launcher_rank": rank, "claimed_rank": rank,
            "local_rank": rank, "world_size": job.world, "initialized": "done", "backend": job.backend,
            "state": "sleeping", "busy": 0.0, "last_change": None,
            "master": "127.0.0.1:29500", "launcher_master": "127.0.0.1:29500", "uses_agent_store": True,
        }  # fmt: skip

    # --- what it did -----------------------------------------------------------------------------------------

    def event(self, kind: str, line: int | None, *, function: str = "main", file: str = SCRIPT, **more: Any) -> Rank:
        place = None
        if kind in _COMPARED:
            place, self.places = self.places, self.places + 1
        if kind in _COUNTED:
            self.counts[_COUNTED[kind]] = self.counts.get(_COUNTED[kind], 0) + 1
        site = frame(line, function, file) if line is not None else None
        self.events.append(
            Event(len(self.events), self.time, kind, place, step=self.step_number, site=site, **more)  # type: ignore[arg-type]
        )
        self.time += 0.01
        return self

    def number(self, group: str, by: int = 1) -> int:
        self.numbers[group] = self.numbers.get(group, 0) + by
        return self.numbers[group]

    def batch(self, line: int) -> Rank:
        return self.event("batch", line)

    def loader_end(self, line: int) -> Rank:
        return self.event("loader-end", line)

    def forward(self, line: int, buffers: int = 0, function: str = "main") -> Rank:
        self.event("forward", line, function=function)
        self.number(self.job.world_group, buffers)
        return self

    def eval_forward(self, line: int, buffers: int = 0, function: str = "main") -> Rank:
        self.event("eval-forward", line, function=function)
        self.number(self.job.world_group, buffers)
        return self

    def backward(self, line: int, buckets: int = 1, function: str = "main") -> Rank:
        self.event("backward", line, function=function)
        self.number(self.job.world_group, buckets)
        return self

    def step(self, line: int) -> Rank:
        self.event("step", line)
        self.step_number += 1
        return self

    def train(self, steps: int, forward: int, backward: int, step: int, batch: int | None = None) -> Rank:
        for _ in range(steps):
            if batch is not None:
                self.batch(batch)
            self.forward(forward).backward(backward).step(step)
        return self

    def collective(self, op: str, line: int, group: str | None = None, function: str = "main", **more: Any) -> Rank:
        key = group or self.job.world_group
        number = self.number(key)
        more.setdefault("numel", 1)
        more.setdefault("dtype", "float32")
        more.setdefault("outer", op)
        return self.event("collective", line, function=function, op=op, group=key, seq=number, **more)

    def send(self, peer: int, line: int, tag: int = 0) -> Rank:
        return self._pair("send", peer, line, tag)

    def recv(self, peer: int, line: int, tag: int = 0) -> Rank:
        return self._pair("recv", peer, line, tag)

    def _pair(self, kind: str, peer: int, line: int, tag: int) -> Rank:
        key = (kind, peer, tag)
        self.pairs[key] = self.pairs.get(key, 0) + 1
        return self.event(kind, line, op=kind, peer=peer, tag=tag, nth=self.pairs[key])

    # --- where it stands ---------------------------------------------------------------------------------------

    def waits(self) -> Rank:
        """In the call that the last event began."""
        event = self.events[-1]
        kind = {"send": "p2p", "recv": "p2p", "init": "init", "new-group": "new-group"}.get(event.kind, "collective")
        self.thread |= {
            "phase": "collective",
            "wait": Wait(
                kind=kind,  # type: ignore[arg-type]
                op=event.op, group=event.group, backend=self.job.backend, seq=event.seq, outer=event.outer,
                numel=event.numel, dtype=event.dtype, reduce_op=event.reduce_op, root=event.root, peer=event.peer,
                tag=event.tag, nth=event.nth, site=event.site, since=event.time,
            ),
            "stack": (torch_frame(), event.site) if event.site else (),
        }  # fmt: skip
        return self

    def waits_in(self, op: str, line: int, group: str | None = None, **more: Any) -> Rank:
        return self.collective(op, line, group, **more).waits()

    def waits_in_cpp(self, op: str = "all_reduce", *, asked: bool = True, numel: int = 640) -> Rank:
        """In a collective that C++ started inside the last forward or backward; `asked`: the flight recorder told."""
        event = self.events[-1]
        phase = {"backward": "backward", "forward": "forward", "eval-forward": "evaluate"}[event.kind]
        group = self.job.world_group
        wait = Wait(
            kind="collective", op=f"{self.job.backend}:{op}", group=group, backend=self.job.backend,
            seq=self.numbers[group], outer=phase, numel=numel, site=event.site, source="flight-recorder",
        )  # fmt: skip
        self.thread |= {
            "phase": phase, "phase_site": event.site, "wait": wait if asked else None,
            "stack": (torch_frame("autograd/graph.py", "_engine_run_backward"), event.site),
        }  # fmt: skip
        return self

    def doing(self, phase: str, line: int, *deeper: Frame, busy: float = 0.0, blocked_in: str | None = None) -> Rank:
        """Alive outside any wait; `deeper` are the frames below the user's line, innermost first."""
        self.thread |= {"phase": phase, "stack": (*deeper, frame(line)), "busy": busy, "phase_site": frame(line)}
        self.facts |= {"busy": busy, "blocked_in": blocked_in, "state": "running" if busy > 0.5 else "sleeping"}
        return self

    def no_stack(self) -> Rank:
        self.thread["stack"] = ()
        return self

    def moving(self) -> Rank:
        self.thread["stable_for"] = 0.0
        self.facts["last_change"] = self.job.taken_at - 0.05
        return self

    def set(self, **facts: Any) -> Rank:
        self.facts |= facts
        return self

    def set_thread(self, **facts: Any) -> Rank:
        self.thread |= facts
        return self

    def child(self, kind: str, *stack: Frame, state: str = "sleeping", blocked_in: str | None = None) -> Rank:
        children = self.facts.get("children", ())
        child = Child(5000 + len(children), kind, state, stack=stack, blocked_in=blocked_in)  # type: ignore[arg-type]
        self.facts["children"] = (*children, child)
        return self

    # --- how it ended ------------------------------------------------------------------------------------------

    def _ends(self, exit: Exit, note: ExitNote | None) -> Rank:
        self.facts |= {"exit": exit, "exit_note": note, "state": "gone"}
        return self

    def finishes(self, at: float = 0.0) -> Rank:
        time = self.time + at
        return self._ends(Exit(0, time=time), ExitNote("finish", time))

    def exits(self, code: int, line: int, at: float = 0.0) -> Rank:
        time = self.time + at
        return self._ends(Exit(code, time=time), ExitNote("exit", time, code, frame(line)))

    def raises(self, type: str, message: str, *lines: int, at: float = 0.0, **more: Any) -> Rank:
        time = self.time + at
        note = ExceptionNote(type, message, tuple(frame(line) for line in lines), time=time, **more)
        return self._ends(Exit(1, time=time + 0.05), ExitNote("exception", time, exception=note))

    def echoes(self, line: int, message: str = "", at: float = 0.02) -> Rank:
        """Ended by another rank's failure, in the call of its last event."""
        text = message or "[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:9159."
        return self.raises("RuntimeError", text, line, at=at)

    def dies(self, signal: int, at: float = 0.0, **more: Any) -> Rank:
        return self._ends(Exit(signal=signal, time=self.time + at, **more), None)

    def aborts(self, at: float = 0.0) -> Rank:
        """gloo ends the process: the size it got does not fit."""
        self.facts["log_tail"] = ("terminate called after throwing an instance of 'gloo::EnforceNotMet'",)
        return self.waits().dies(6, at)

    def killed(self) -> Rank:
        """By the launcher's clean-up."""
        return self.dies(15, at=0.5, killed_by_launcher=True)

    # --- the process ---------------------------------------------------------------------------------------------

    def process(self) -> Process:
        keys = dict.fromkeys([*self.job.groups_of(self.rank), *self.numbers])
        groups = tuple(
            Group(
                key, name=key, backend=self.job.backend, members=self.job.members(key),
                enqueued=self.numbers.get(key, 0), finished=self.finished.get(key),
            )
            for key in keys
        )  # fmt: skip
        facts = dict(self.facts)
        if facts["last_change"] is None:
            facts["last_change"] = self.time
        self.thread.setdefault("step", self.step_number)
        self.thread["collectives"] = self.counts.get("collectives", 0) + self.numbers.get(self.job.world_group, 0)
        return Process(
            threads=(Thread(**self.thread),),
            groups=groups,
            counters=Counters(events=len(self.events), **self.counts),
            ring=tuple(self.events),
            loop_step=self.step_number,
            **facts,
        )


class Job:
    """A job of `world` ranks. `source` is the text of its script; lines are found by their `# <- name` marks."""

    def __init__(self, world: int, source: str = "", backend: str = "gloo") -> None:
        self.world, self.source, self.backend = world, source, backend
        self.world_group = group_key(range(world))
        self.subgroups: dict[str, tuple[int, ...]] = {}
        self.taken_at = START + 100.0
        self.facts: dict[str, Any] = {"reason": "stall", "stalled": True, "quiet_for": 6.0}
        self.ranks = [Rank(self, rank) for rank in range(world)]

    def __getitem__(self, rank: int) -> Rank:
        return self.ranks[rank]

    def group(self, *members: int) -> str:
        key = group_key(members)
        self.subgroups[key] = members
        return key

    def members(self, key: str) -> tuple[int, ...]:
        return self.subgroups.get(key, tuple(range(self.world)))

    def groups_of(self, rank: int) -> list[str]:
        return [self.world_group, *(key for key, members in self.subgroups.items() if rank in members)]

    def line(self, mark: str) -> int:
        """The number of the line that ends in `# <- mark`."""
        lines = [n for n, text in enumerate(self.source.split("\n"), 1) if text.rstrip().endswith(f"# <- {mark}")]
        assert len(lines) == 1, f"{mark}: {lines}"
        return lines[0]

    def crashed(self) -> Job:
        self.facts |= {"reason": "end", "stalled": False, "outcome": "crashed"}
        return self

    def completed(self) -> Job:
        self.facts |= {"reason": "end", "stalled": False, "outcome": "completed"}
        return self

    def at_once(self) -> Job:
        """Seen half a second after it stood still: nothing has stalled yet."""
        self.facts |= {"reason": "stall", "stalled": False, "quiet_for": 0.6}
        for rank in self.ranks:
            rank.thread["stable_for"] = min(rank.thread["stable_for"], 0.6)
        return self

    def listens(self, port: int, pid: int | None, command: str) -> Job:
        self.facts["ports"] = (PortHolder(port, pid, command),)
        return self

    def snapshot(self, **facts: Any) -> Snapshot:
        taken = max([self.taken_at, *(rank.time for rank in self.ranks)])
        made = Snapshot(
            taken_at=taken,
            processes=tuple(rank.process() for rank in self.ranks),
            sources={SCRIPT: self.source} if self.source else {},
            command=("train.py",),
            **({"world_size": self.world} | self.facts | facts),
        )
        # Every hand-made snapshot goes through the file format, as real ones do.
        return msgspec.json.decode(msgspec.json.encode(made), type=Snapshot)


def group_key(members: Any) -> str:
    ranks = list(members)
    whole = ranks == list(range(ranks[0], ranks[0] + len(ranks))) and len(ranks) > 1
    return f"{ranks[0]}-{ranks[-1]}#0" if whole else ",".join(map(str, ranks)) + "#0"
