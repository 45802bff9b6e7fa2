"""A parting with its surroundings, as the rules about blame look at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rankcall.diagnose import words
from rankcall.diagnose.frames import code_of, same_place, user_frames
from rankcall.diagnose.graph import Graph
from rankcall.diagnose.parting import END, Parting, Token, token
from rankcall.diagnose.rings import steps_of
from rankcall.diagnose.roll import Roll
from rankcall.diagnose.source import Guard, Loop, Path, Program
from rankcall.findings import Evidence
from rankcall.snapshot import Event, Frame

# How many calls have to repeat before what followed them is called a habit.
LONG_HABIT, SHORT_HABIT = 12, 4


@dataclass(frozen=True)
class Party:
    """Ranks that did the same at the place where the programs parted. `event` is None for those that had left."""

    token: Token
    ranks: tuple[int, ...]
    event: Event | None

    @property
    def site(self) -> Frame | None:
        return self.event.site if self.event is not None else None

    @property
    def is_collective(self) -> bool:
        return self.token[0] == "collective"


@dataclass(frozen=True)
class Case:
    """What the rules need: the roll, the graph and one parting."""

    roll: Roll
    graph: Graph
    parting: Parting

    @property
    def program(self) -> Program:
        return self.roll.program

    @cached_property
    def parties(self) -> tuple[Party, ...]:
        """The sides, split by call site where the programs parted before the operations did; largest first."""
        parting = self.parting
        if parting.first_index == parting.index:
            return tuple(Party(side.token, side.ranks, parting.event(side.ranks[0])) for side in parting.sides)
        by_site: dict[tuple[Token, str, int], list[int]] = {}
        for rank, lane in parting.lanes.items():
            event = lane.event(parting.first_index)
            if event is not None:
                site = event.site or Frame("", 0)
                by_site.setdefault((token(event), site.file, site.line), []).append(rank)
        parties = [
            Party(key[0], tuple(sorted(ranks)), parting.lanes[ranks[0]].event(parting.first_index))
            for key, ranks in by_site.items()
        ]
        return tuple(sorted(parties, key=lambda party: (-len(party.ranks), party.ranks)))

    def others(self, party: Party) -> tuple[Party, ...]:
        return tuple(other for other in self.parties if other is not party)

    def rest(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """The members on the other sides."""
        return tuple(sorted(rank for party in self.parties for rank in party.ranks if rank not in ranks))

    def previous(self, party: Party) -> Event | None:
        """The party's last event that all had in common."""
        return self.parting.lanes[party.ranks[0]].event(self.parting.first_index - 1)

    def phase_before(self, party: Party) -> Event | None:
        """The party's last common forward or backward; a sharded model's own collectives in it are passed over."""
        lane = self.parting.lanes[party.ranks[0]]
        for index in range(self.parting.first_index - 1, -1, -1):
            event = lane.events[index]
            if event.kind != "collective":
                return event
            if index and not same_place(event.site, lane.events[index - 1].site):
                return None
        return None

    def path(self, party: Party) -> Path:
        """How the party's call was reached: by the stack where one shows it, else as the source allows."""
        event = party.event
        if event is None or event.site is None:
            return ()
        called = event.outer or event.op
        frames = next((found for rank in party.ranks if (found := self._frames(rank, event.site))), ())
        if not frames:
            return self.program.path(event.site, called)
        names = [called, *(self.program.spot(frame).function or frame.function for frame in frames)]
        # A stack may be cut off; then the source goes on.
        return (*zip(frames, names, strict=False), *self.program.path(frames[-1])[1:])

    def _frames(self, rank: int, site: Frame) -> tuple[Frame, ...]:
        """The user's frames from this line outwards, if the rank stands there now (or stood there at its end)."""
        lane, standing = self.parting.lanes[rank], self.roll.standings[rank]
        if not all(same_place(event.site, site) for event in lane.events[self.parting.first_index :]):
            return ()
        stack = standing.thread.stack
        if not stack and standing.exception is not None:
            stack = tuple(reversed(standing.exception.frames))
        frames = user_frames(stack, self.roll.snapshot.sources)
        at = next((index for index, frame in enumerate(frames) if same_place(frame, site)), None)
        return frames[at:] if at is not None else ()

    def rank_guard(self, party: Party) -> Guard | None:
        """The condition on the rank that the party's call stands under, here or around the calls that led to it."""
        path, site = self.path(party), party.site
        frames = next((found for rank in party.ranks if site and (found := self._frames(rank, site))), (site,))
        return self.program.rank_guard_along(path[: len(frames)]) or self.program.rank_guard(frames[-1])

    def loader_end(self, ranks: Sequence[int]) -> Event | None:
        """The end of a data loader that one of these ranks came to after the last common event."""
        index = self.parting.first_index
        for rank in ranks:
            lane = self.parting.lanes[rank]
            before, after = lane.event(index - 1), lane.event(index)
            low = before.index if before is not None else -1
            high = after.index if after is not None else 1 << 62
            for event in reversed(self.roll.standings[rank].process.ring):
                if event.index <= low:
                    break
                if event.kind == "loader-end" and event.index < high:
                    return event
        return None

    def ran_out(self, party: Party) -> Event | None:
        """The party's loader end at the place of parting, if the others did not come to theirs there too."""
        return None if self.loader_end(self.rest(party.ranks)) is not None else self.loader_end(party.ranks)

    def seen(
        self, ranks: Sequence[int], site: Frame | None, *, before: bool = False, after: bool = False, kind: str = ""
    ) -> bool:
        """Whether one of these ranks was at this line: at all, before the parting, or after it; with this kind."""
        index = self.parting.first_index
        for rank in ranks:
            events = self.parting.lanes[rank].events
            part = events[:index] if before else events[index + 1 :] if after else events
            if any(same_place(event.site, site) and kind in ("", event.kind) for event in part):
                return True
        return False

    def expected(self) -> Frame | None:
        """Where the programs' own habit would have led: what followed the last time the same lines were run."""
        index = self.parting.first_index
        sites = [event.site for event in next(iter(self.parting.lanes.values())).events[:index]]
        for length in (LONG_HABIT, SHORT_HABIT):
            if index <= length:
                continue
            habit = sites[index - length :]
            for end in range(index - 1, length - 1, -1):
                if sites[end - length : end] == habit:
                    return sites[end]
        return None

    def inside(self, loop: Loop, frame: Frame | None, depth: int = 3) -> bool:
        """True when the line runs in this loop, in its own function or through the calls of it."""
        if frame is None or depth == 0:
            return False
        if loop.holds(frame):
            return True
        name = self.program.spot(frame).function or frame.function
        callers = self.program.callers(name)
        return bool(callers) and all(self.inside(loop, caller, depth - 1) for caller in callers[:8])

    def guarded(self, frame: Frame | None) -> bool:
        """True when some condition other than a loop stands around the line."""
        return any(guard.branch in ("if", "else", "except") for guard in self.program.spot(frame).guards)

    def who(self, ranks: Sequence[int]) -> str:
        return self.roll.place_name(ranks[0]) if len(ranks) == 1 else words.ranks_text(ranks)

    def steps(self, ranks: Sequence[int]) -> int:
        """The most steps that one of these ranks has taken: optimizer steps, else backwards, else events."""
        standings = [self.roll.standings[rank] for rank in ranks]
        steps = max((steps_of(s) for s in standings), default=0)
        return steps or max((s.process.counters.backwards for s in standings), default=0)

    def short_of_steps(self, ranks: Sequence[int]) -> str:
        """`has no more than 29 steps, rank 0 goes on to another`."""
        mine, rest = self.steps(ranks), self.rest(ranks)
        live = any(self.roll.standings[rank].present for rank in rest)
        go_on = words.verb(rest, "goes on", "go on") if live else "went on"
        if not mine:
            return f"left the loop while {words.ranks_text(rest)} {go_on}"
        have = words.verb(ranks, "has", "have") if self.roll.standings[ranks[0]].present else "had"
        return f"{have} no more than {words.count(mine, 'step')}, {words.ranks_text(rest)} {go_on} to another"

    def step_at(self, ranks: Sequence[int]) -> int | None:
        """The step at which these ranks parted, counted from 0."""
        for rank in ranks:
            lane = self.parting.lanes[rank]
            event = lane.event(self.parting.first_index) or lane.event(self.parting.first_index - 1)
            if event is not None and event.step is not None:
                return event.step
        return None

    def stands(self, ranks: Sequence[int]) -> str:
        """`wait in barrier at train.py:64`, `was last in …` or `have ended`, for the end of a sentence."""
        texts: dict[str, None] = {}
        live = any(self.roll.standings[rank].present for rank in ranks)
        for rank in ranks:
            standing = self.roll.standings[rank]
            if standing.wait is not None:
                verb = words.verb(ranks, "waits", "wait") if live else words.verb(ranks, "was last", "were last")
                texts[f"{verb} in {words.operation(standing.wait)}{words.at(standing.wait.site)}"] = None
            elif not standing.present:
                texts[words.verb(ranks, "has ended", "have ended")] = None
            else:
                texts[f"{words.verb(ranks, 'is', 'are')} in phase {standing.thread.phase}"] = None
        return " or ".join(list(texts)[:2])

    def ending(self, ranks: Sequence[int], done_at: Frame | None = None) -> str:
        """The end of a verdict's sentence: where these ranks are now, and where the others wait. Nothing about
        their own place if it is the one the sentence has just named."""
        rest = self.rest(ranks)
        first = self.roll.standings[ranks[0]]
        now = "now " if first.present else ""
        others = f"{words.ranks_text(rest)} {self.stands(rest)}"
        if done_at is not None and first.wait is not None and same_place(first.wait.site, done_at):
            return f"; {others}"
        mine = self.stands(ranks)
        if mine.partition(" in ")[2] == self.stands(rest).partition(" in ")[2] != "":
            return f", and {now}{mine}, like {words.ranks_text(rest)}"
        return f", and {now}{mine}, where {others}"

    def evidence(self, ranks: Sequence[int]) -> tuple[Evidence, ...]:
        """For one rank of each party: what it did at the place of parting; and these ranks' counters."""
        found = []
        for party in self.parties:
            rank = party.ranks[0]
            standing = self.roll.standings[rank]
            if party.event is None:
                text, time = "had ended", standing.ended_at
            else:
                code = code_of(party.site, self.roll.snapshot.sources)
                text = f"{words.operation(party.event)}{words.at(party.site)}" + (f": {code}" if code else "")
                time = party.event.time - standing.process.clock_offset
            found.append(Evidence("record", f"{words.ranks_text(party.ranks)}: {text}", rank, self.roll.host(rank),
                                  time))  # fmt: skip
        for rank in [*list(ranks)[:2], *self.rest(ranks)[:2]]:
            counters = self.roll.standings[rank].process.counters
            found.append(Evidence(
                "counters",
                f"{counters.batches} batches, {counters.forwards} forwards, {counters.backwards} backwards, "
                f"{counters.optimizer_steps} optimizer steps, {counters.collectives} collectives seen",
                rank, self.roll.host(rank)))  # fmt: skip
        return tuple(found)


def left(party: Party) -> bool:
    """True for ranks that had ended by themselves."""
    return party.token == END
