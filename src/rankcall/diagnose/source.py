"""What the user's source says about a line: its loop, the conditions around it, the ways out between two lines.

Reads text kept in the snapshot, across files and calls; one file at a time is parsing.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from rankcall.diagnose import parsing
from rankcall.diagnose.names import of_foreign_class
from rankcall.diagnose.parsing import NOWHERE, Guard, Jump, Loop, SourceFile, Spot
from rankcall.snapshot import Frame

__all__ = ["Guard", "Jump", "Loop", "Path", "Program", "Spot"]

# A chain of calls, innermost first: each line, and the name of what it calls there.
Path = tuple[tuple[Frame, str], ...]


class Program:
    """The user's sources, parsed when first asked for."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._texts = sources
        self._files: dict[str, SourceFile] = {}
        self._spots: dict[tuple[str, int], Spot] = {}
        self._jumps: dict[str, tuple[Jump, ...]] = {}
        self._classes: set[str] | None = None

    def _file(self, name: str) -> SourceFile:
        if name not in self._files:
            self._files[name] = SourceFile(name, self._texts.get(name, ""))
        return self._files[name]

    def spot(self, frame: Frame | None) -> Spot:
        """The loops and conditions around a line, within its function."""
        if frame is None or frame.line <= 0:
            return NOWHERE
        key = (frame.file, frame.line)
        if key not in self._spots:
            self._spots[key] = parsing.spot(self._file(frame.file), frame.line)
        return self._spots[key]

    def jumps(self, file: str, first: int, last: int) -> tuple[Jump, ...]:
        """The ways out of the straight line between two lines of a file, both included."""
        if file not in self._jumps:
            parsed = self._file(file)
            found = parsing.jumps(parsed, parsed.tree) if parsed.tree is not None else iter(())
            jumps = [Jump(kind, file, line, guard) for kind, line, guard in found]
            self._jumps[file] = tuple(sorted(jumps, key=lambda jump: jump.line))
        return tuple(jump for jump in self._jumps[file] if first <= jump.line <= last)

    def agreed(self, jump: Jump) -> bool:
        """True when the jump's condition went through a collective: no rank takes it alone."""
        test = self._file(jump.file).tests.get(jump.guard.line) if jump.guard is not None else None
        return test is not None and self._file(jump.file).agreed(test)

    def ran_out(self, jump: Jump) -> bool:
        """True when the jump is the ordinary end of a stream that the loop draws from by itself."""
        if jump.guard is None:
            return False
        if jump.guard.branch == "except":
            return "StopIteration" in jump.guard.text
        test = self._file(jump.file).tests.get(jump.guard.line)
        return jump.guard.branch == "if" and test is not None and self._file(jump.file).ran_out(test)

    def exits(self) -> tuple[Jump, ...]:
        """Every call of exit (and `raise SystemExit`) that stands under a condition, in the files that were kept."""
        found = (jump for file in self._texts for jump in self.jumps(file, 0, 10**9))
        return tuple(jump for jump in found if jump.kind == "exit" and jump.guard is not None)

    def rank_guard(self, frame: Frame | None) -> Guard | None:
        """The condition on the rank that a line stands under, in its own function or around every call of it."""
        return self._guard(frame, 3, by_rank=True)

    def condition(self, frame: Frame | None) -> Guard | None:
        """The innermost condition of any kind that a line stands under, in its function or around every call."""
        return self._guard(frame, 3, by_rank=False)

    def _guard(self, frame: Frame | None, depth: int, *, by_rank: bool, called: str = "") -> Guard | None:
        if frame is None or depth == 0:
            return None
        for guard in self.guards(frame, called):
            if guard.by_rank or not by_rank:
                return guard
        name = self.spot(frame).function or frame.function
        callers = self.callers(name)
        if not callers or len(callers) > 8:
            return None
        guards = [self._guard(caller, depth - 1, by_rank=by_rank, called=name) for caller in callers]
        return guards[0] if all(guard is not None for guard in guards) else None

    def guards(self, frame: Frame, called: str = "") -> tuple[Guard, ...]:
        """The conditions around a call in its own function, innermost first; `called` tells which one of its line."""
        inline = self._file(frame.file).inline.get((frame.line, called.rpartition(".")[2]), ()) if called else ()
        found = (*inline, *self.spot(frame).guards)
        return tuple(g for g in found if g.branch in ("if", "else") and "__name__" not in g.text)

    def rank_guard_along(self, path: Path) -> Guard | None:
        """The innermost condition on the rank along a known chain of calls."""
        found = (guard for frame, called in path for guard in self.guards(frame, called) if guard.by_rank)
        return next(found, None)

    def known(self, frame: Frame | None) -> bool:
        """True when the text of this line's file was kept."""
        return frame is not None and frame.file in self._texts

    def callers(self, function: str) -> tuple[Frame, ...]:
        """Where a function of this name is called, in the files that were kept."""
        if not function or function.startswith("<"):
            return ()
        name = function.rpartition(".")[2]
        own = {PurePosixPath(file).stem for file in self._texts}
        found = (
            Frame(file, line)
            for file in self._texts
            for line, base in self._file(file).calls.get(name, ())
            # `torch.save(…)` is no call of the user's own `save`, `optimizer.step()` none of its `step`.
            if (base not in self._file(file).modules or base in own) and not self._foreign(file, base)
        )
        # What a function calls by its own name is another one of that name, or itself.
        return tuple(frame for frame in found if self.spot(frame).function != name)

    def _foreign(self, file: str, base: str) -> bool:
        """True for an object of a class that is none of the user's, made of nothing that is."""
        values = self._file(file).made_from.get(base, ())
        if self._classes is None:
            self._classes = set().union(*(self._file(one).classes for one in self._texts))
        own = self._classes
        return bool(values) and all(of_foreign_class(value, own) for value in values)

    def loops_around(self, frame: Frame | None, depth: int = 3) -> tuple[Loop, ...]:
        """The loops a line runs in, innermost first: its function's own, then those around the calls of it."""
        if frame is None or depth == 0:
            return ()
        spot = self.spot(frame)
        callers = self.callers(spot.function or frame.function)
        outer = self.loops_around(callers[0], depth - 1) if len(callers) == 1 else ()
        return spot.loops + outer

    def handlers_around(self, frame: Frame | None, depth: int = 3) -> tuple[Frame, ...]:
        """The `except` lines that swallow what is raised at a line, in its function and around the calls of it."""
        if frame is None or depth == 0:
            return ()
        spot = self.spot(frame)
        own = tuple(Frame(frame.file, line, spot.function) for line in spot.handlers)
        callers = self.callers(spot.function or frame.function)
        if own or len(callers) != 1:
            return own
        return self.handlers_around(callers[0], depth - 1)

    def path(self, frame: Frame | None, called: str = "", depth: int = 3) -> Path:
        """A line and the calls that can lead to it, where no stack tells which one did."""
        if frame is None or depth == 0:
            return ()
        name = self.spot(frame).function or frame.function
        callers = self.callers(name)
        outer = [step for caller in callers for step in self.path(caller, name, depth - 1)] if len(callers) < 5 else []
        return ((frame, called), *outer)

    def exclusive(self, one: Path, other: Path) -> Guard | None:
        """The condition whose two sides these calls stand on, in their functions or around the calls of them."""
        first, second = self._choices(one), self._choices(other)
        for place, guard in second.items():
            partner = first.get(place)
            if partner is not None and partner.branch != guard.branch:
                return partner if partner.branch == "if" else guard
        return None

    def _choices(self, path: Path) -> dict[tuple[str, int, str], Guard]:
        """The conditions that decided for this call, innermost first: none that a loop stands under, for then the
        loop's length may have decided, and none that leads here by both of its sides."""
        found: dict[tuple[str, int, str], Guard] = {}
        both: set[tuple[str, int, str]] = set()
        looped = False
        for index, (frame, called) in enumerate(path):
            loops = self.spot(frame).loops
            for guard in self.guards(frame, called):
                if index and (looped or any(loop.line > guard.line for loop in loops)):
                    continue
                known = found.setdefault((guard.file, guard.line, guard.text), guard)
                if known.branch != guard.branch:
                    both.add((guard.file, guard.line, guard.text))
            looped = looped or bool(loops)
        return {place: guard for place, guard in found.items() if place not in both}

    def common_loop(self, one: Frame | None, other: Frame | None) -> Loop | None:
        """The innermost loop that holds both lines."""
        if one is None or other is None:
            return None
        return next((loop for loop in self.spot(one).loops if loop.holds(other)), None)
