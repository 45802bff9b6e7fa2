"""The tracks of one rank: its state at the snapshot, its phases, its collectives, its optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator
from signal import Signals

from rankcall.render import plain
from rankcall.render.trace_events import Args, Shown, counter, number, point, process_names, span, track_names
from rankcall.render.trace_scene import MOST_THREADS, DrawnRank, Scene
from rankcall.snapshot import Event, Wait

# The order of the tracks; AWAITED is filled where the arrows are.
STATE, AWAITED, PHASES, LANES = range(4)
MOST_LANES = 16  # tracks for collectives that overlap
_THREADS = LANES + MOST_LANES

MOST_NOTES = 16  # handled exceptions
_MOST_FRAMES = 12
_MOST_DEVICES = 8

# Kind of event: the slice's name, and the thread's phase while it goes on ("": over as soon as it is noted).
_PHASE_OF_KIND = {
    "init": ("init", "init"),
    "new-group": ("new group", "collective"),
    "destroy": ("destroy group", ""),
    "compile": ("compile", "compile"),
    "batch": ("batch", ""),
    "loader-end": ("loader end", ""),
    "forward": ("forward", "forward"),
    "eval-forward": ("evaluate", "evaluate"),
    "backward": ("backward", "backward"),
    "step": ("optimizer", "optimizer"),
    "scaler-step": ("scaler step", "optimizer"),
    "save": ("save", "save"),
    "load": ("load", "load"),
}
_MOMENTS = frozenset({"exception", "exit"})
_OPERATIONS = frozenset({"collective", "send", "recv", "wait"})
# A batch is noted when it is there, so the slice before it holds the waiting for it too.
_LOADED = frozenset({"batch", "loader-end"})

_NOT_COMPLETED = "not completed"
_NOTICED = "completion was noticed"
_TO_LAST_RANK = "not recorded; drawn until the last rank came"
_TO_NEXT_EVENT = "not recorded; drawn until the next event"


class RankTracks:
    """`place` is where the rank stands among the processes of the trace."""

    def __init__(self, scene: Scene, rank: DrawnRank, place: int) -> None:
        self.scene, self.rank, self.place = scene, rank, place
        self.process, self.number = rank.process, rank.number
        self.ring = [(scene.micros(time), event) for time, event in scene.ring(rank)]
        # Where things end that are not over: with the process, else with the trace.
        self.close = scene.micros(scene.end if rank.ended is None else rank.ended)
        since = scene.time(rank.process, rank.main.phase_since) if rank.main is not None else None
        self.phase_since = scene.micros(since) if since is not None else None

    def events(self) -> Iterator[Shown]:
        yield from self._names()
        yield from self._state()
        yield from self._threads()
        yield from self._phases()
        yield from self._handled()
        yield from self._operations()
        if self.scene.with_steps:
            yield from self._steps()

    def _track(self, track: int, name: str) -> Iterator[Shown]:
        return track_names(self.number, self.scene.first_track + track, name)

    def _span(
        self, track: int, start: int, end: int, name: str, category: str, args: Args, *, loud: bool = False
    ) -> Shown:
        return span(self.number, self.scene.first_track + track, start, end, name, category, args, loud=loud)

    def _point(self, track: int, at: int, name: str, category: str, args: Args | None = None) -> Shown:
        return point(self.number, self.scene.first_track + track, at, name, category, args)

    # --- who it is ---------------------------------------------------------------------------------------------

    def _names(self) -> Iterator[Shown]:
        process = self.process
        # Both viewers write the number behind the name: "host-a, culprit, rank 3".
        parts = [self.scene.text(process.host)] if process.host else []
        if process.attempt != self.scene.snapshot.attempt:
            parts.append(f"attempt {number(process.attempt)}")
        parts += ["culprit"] if self.rank.culprit else []
        if self.number == process.rank:
            parts.append("rank")
        else:
            whose = "no rank" if process.rank is None else f"also rank {number(process.rank)}"
            parts.append(f"pid {number(process.pid)}, {whose}, number")
        labels = [f"pid {number(process.pid)}"] if process.pid else []
        labels += [f"local rank {number(process.local_rank)}"] if process.local_rank is not None else []
        labels += [self.scene.text(device) for device in process.devices[:_MOST_DEVICES]]
        yield from process_names(self.number, ", ".join(parts), self.place, ", ".join(labels))

    # --- its state ---------------------------------------------------------------------------------------------

    def _state(self) -> Iterator[Shown]:
        """The roll call's line of this rank, as a slice that reaches to the snapshot."""
        rank, row, scene = self.rank, self.rank.row, self.scene
        start, end = scene.state_span(rank)
        args: Args = {}
        if row is not None:
            args |= {
                "state": row.state,
                "phase": scene.text(row.phase) if row.phase else None,
                "step": number(row.step),
                "where": scene.place(row.where),
                "code": plain.code(row.where.code) if row.where is not None and row.where.code else None,
                "stack, innermost first": [scene.place(frame) for frame in row.stack[:_MOST_FRAMES]],
            }
        if rank.wait is not None:
            args |= self._wait_args(rank.wait)
        yield from self._track(STATE, "state")
        yield self._span(STATE, start, end, self._state_name(), "state", args, loud=rank.culprit)
        if rank.ended is not None:
            yield self._point(STATE, scene.micros(rank.ended), self._ending(), "exit")

    def _state_name(self) -> str:
        rank, row = self.rank, self.rank.row
        if row is not None and row.state == "crashed":
            return f"crashed: {self._ending()}"
        if rank.wait is not None and (row is None or row.state == "waiting"):
            return self._waits_in(rank.wait)
        if row is None:
            return "ended" if rank.ended is not None else "unknown"
        phase = row.phase if row.state not in ("finished", "unknown") else None
        return f"{row.state}, {self.scene.text(phase)}" if phase else row.state

    def _ending(self) -> str:
        note, end = self.process.exit_note, self.process.exit
        if note is not None and note.exception is not None:
            return f"exception {plain.line(f'{note.exception.type}: {note.exception.message}', 300)}"
        if end is not None and end.signal is not None:
            return f"ended by {_signal(end.signal)}{', the clean-up' if end.killed_by_launcher else ''}"
        code = end.code if end is not None else (note.code if note is not None else None)
        return "ended" if code is None else f"exit code {number(code)}"

    def _waits_in(self, wait: Wait) -> str:
        if wait.peer is not None:
            return f"waiting in {self.scene.operation(wait.op, wait.peer)}"
        which = f" #{number(wait.seq)}" if wait.seq is not None else ""
        return f"waiting in {self.scene.operation(wait.op or wait.kind)}{which}"

    def _wait_args(self, wait: Wait) -> Args:
        return self.scene.operation_args(wait) | {
            "backend": self.scene.text(wait.backend) if wait.backend else None,
            "seen by": wait.source,
            "site": self.scene.place(wait.site),
        }

    def _threads(self) -> Iterator[Shown]:
        """Waits of threads beside the main one, in which a checkpoint is written, say."""
        waiting = [one for one in self.process.threads if one is not self.rank.main and one.wait is not None]
        self.scene.left_out["waits of other threads"] += max(len(waiting) - MOST_THREADS, 0)
        now = self.scene.now
        for track, thread in enumerate(waiting[:MOST_THREADS], _THREADS):
            wait = thread.wait
            assert wait is not None
            since = self.scene.time(self.process, wait.since)
            start = min(self.scene.micros(since), now) if since is not None else now
            yield from self._track(track, f"thread {self.scene.text(thread.name)}")
            yield self._span(track, start, max(now, start + 1), self._waits_in(wait), "state", self._wait_args(wait))

    # --- phases ------------------------------------------------------------------------------------------------

    def _phases(self) -> Iterator[Shown]:
        """What is recorded of a phase is how it began: it lasts until the next one, and the last one until the main
        thread's phase changed."""
        main, scene = self.rank.main, self.scene
        begun = [(at, event) for at, event in self.ring if event.kind in _PHASE_OF_KIND]
        moments = [(at, event) for at, event in self.ring if event.kind in _MOMENTS]
        if begun or moments or self.phase_since is not None or self.process.handled:
            yield from self._track(PHASES, "phases")
        drawn_to, goes_on = -1, False
        for place, (start, event) in enumerate(begun):
            following = begun[place + 1] if place + 1 < len(begun) else None
            name, phase = _PHASE_OF_KIND[event.kind]
            end = self.close
            if following is not None:
                end = following[0]
                if following[1].kind in _LOADED:
                    name += " + data"
            elif main is not None and self.phase_since is not None and self.phase_since >= start:
                goes_on = main.phase == phase
                end = end if goes_on else self.phase_since
            ended = scene.time(self.process, event.ended)
            if ended is not None:
                end = min(end, scene.micros(ended))
            drawn_to = max(end, start)
            args: Args = {"step": number(event.step), "site": scene.place(event.site)}
            yield self._span(PHASES, start, drawn_to, name, "phase", args)
        if main is not None and self.phase_since is not None and not goes_on and self.phase_since >= drawn_to:
            args = {"step": number(main.step), "site": scene.place(main.phase_site)}
            end = max(self.close, self.phase_since)
            yield self._span(PHASES, self.phase_since, end, main.phase, "phase", args)
        for at, event in moments:
            yield self._point(PHASES, at, event.kind, "exception", {"site": scene.place(event.site)})

    def _handled(self) -> Iterator[Shown]:
        """Exceptions that did not end the process. One that is older than the trace would only stretch it."""
        scene = self.scene
        timed = [(scene.time(self.process, note.time), note) for note in self.process.handled]
        inside = [(time, note) for time, note in timed if time is not None and scene.begin <= time <= scene.end]
        inside.sort(key=lambda one: one[0])
        scene.left_out["handled exceptions"] += len(timed) - len(inside[-MOST_NOTES:])
        for time, note in inside[-MOST_NOTES:]:
            args: Args = {
                "message": plain.paragraph(note.message),
                "stack, innermost first": [scene.place(frame) for frame in note.frames[::-1][:_MOST_FRAMES]],
            }
            yield self._point(PHASES, scene.micros(time), f"handled {plain.line(note.type, 80)}", "exception", args)

    # --- collectives -------------------------------------------------------------------------------------------

    def _operations(self) -> Iterator[Shown]:
        """Each on the first track that is free at that time."""
        free_from: list[int] = []
        for place, (start, event) in enumerate(self.ring):
            if event.kind not in _OPERATIONS:
                continue
            end, how = self._end(place)
            args = self.scene.operation_args(event)
            args |= {"step": number(event.step), "site": self.scene.place(event.site), "end": how}
            name = self._name(event)
            lane = next((lane for lane, free in enumerate(free_from) if free <= start), len(free_from))
            if lane == MOST_LANES:
                self.scene.left_out["lengths of overlapping collectives"] += 1
                yield self._point(LANES, start, name, "collective", args)
                continue
            if lane == len(free_from):
                free_from.append(0)
                yield from self._track(LANES + lane, "overlapping" if lane else "collectives")
            free_from[lane] = end = max(end, start + 1)
            is_open = how == _NOT_COMPLETED
            name += " (not completed)" if is_open else ""
            yield self._span(LANES + lane, start, end, name, "collective", args, loud=is_open)

    def _name(self, event: Event) -> str:
        peer = event.peer if event.kind in ("send", "recv") else None
        name = self.scene.operation(event.op or event.kind, peer)
        return f"wait for {name}" if event.kind == "wait" else name

    def _end(self, place: int) -> tuple[int, str]:
        """When the operation of that event ended, as far as it is known, and how that was found."""
        start, event = self.ring[place]
        ended = self.scene.time(self.process, event.ended)
        if ended is not None:
            return min(self.scene.micros(ended), self.close), _NOTICED
        if self._is_open(event):
            return self.close, _NOT_COMPLETED
        following = self.close
        if place + 1 < len(self.ring):
            following = self.ring[place + 1][0]
        elif self.phase_since is not None and self.phase_since > start:
            following = self.phase_since
        if event.kind == "collective" and event.seq is not None:
            # Nobody leaves before all have come; a rank's own next event shows that it has left.
            last, count = self.scene.arrivals.get((event.group, event.seq), (0.0, 0))
            if count > 1:
                return min(self.scene.micros(last), following), _TO_LAST_RANK
        return following, _TO_NEXT_EVENT

    def _is_open(self, event: Event) -> bool:
        """True if the process waits in it, or its flight-recorder dump does not show it completed."""
        if any(one.wait is not None and _is_in(one.wait, event) for one in self.process.threads):
            return True
        if self.process.dump is None or event.seq is None or event.kind != "collective":
            return False
        group = next((one for one in self.process.groups if one.key == event.group), None)
        return group is not None and group.finished is not None and event.seq > group.finished

    # --- steps -------------------------------------------------------------------------------------------------

    def _steps(self) -> Iterator[Shown]:
        step = None
        for at, event in self.ring:
            known = number(event.step)
            if isinstance(known, int) and known != step:
                step = known
                yield counter(self.number, at, "optimizer", "steps", step)


def _is_in(wait: Wait, event: Event) -> bool:
    """True if the wait is in the operation of that event."""
    if event.kind == "collective":
        return event.seq is not None and (wait.group, wait.seq) == (event.group, event.seq)
    if event.kind not in ("send", "recv") or wait.kind != "p2p":
        return False
    same = (wait.peer, wait.tag, wait.nth) == (event.peer, event.tag, event.nth)
    return same and wait.op.rpartition(":")[2].endswith(event.kind)


def _signal(code: int) -> str:
    try:
        return Signals(code).name
    except ValueError:
        return f"signal {number(code)}"
