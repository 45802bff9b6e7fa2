"""When is a standstill a suspicion? The rule by time, where nothing proves it."""

from __future__ import annotations

from collections.abc import Sequence

from rankcall.watch.looks import Look

FIRST = 600.0  # seconds before the first step, and for a phase never seen
LEAST = 60.0
TIMES_LONGEST = 10.0
_NOTED_FROM = 1.0  # quiet spells shorter than this teach nothing


class QuietRule:
    """Counts how long nobody has moved, and how long each phase has ever been quiet.

    `fixed` is the user's --stall-after; None means auto: 600 s before the first step and for a phase never seen,
    then the larger of 60 s and 10 times that phase's longest quiet spell so far.
    """

    def __init__(self, fixed: float | None) -> None:
        self.fixed = fixed
        self.quiet_for = 0.0
        self._longest: dict[str, float] = {}
        self._spell: dict[str, float] = {}

    def restart(self) -> None:
        self.quiet_for = 0.0

    def turn(self, elapsed: float, looks: Sequence[Look]) -> None:
        """One look has been taken at all of these."""
        alive = [look for look in looks if not look.gone]
        if not alive or any(look.quiet < elapsed or look.quiet == 0.0 for look in alive):
            self.quiet_for = 0.0
        else:
            self.quiet_for += elapsed
        for phase in _phases(alive):
            spell = max((look.quiet for look in alive if look.main and look.main.phase == phase), default=0.0)
            before = self._spell.get(phase, 0.0)
            if spell < before and before > _NOTED_FROM:
                self._longest[phase] = max(self._longest.get(phase, 0.0), before)
            self._spell[phase] = spell
        for phase in [phase for phase in self._spell if phase not in _phases(alive)]:
            before = self._spell.pop(phase)
            if before > _NOTED_FROM:
                self._longest[phase] = max(self._longest.get(phase, 0.0), before)

    def limit(self, looks: Sequence[Look]) -> float:
        """Seconds of quiet after which this state is suspicious."""
        if self.fixed is not None:
            return self.fixed
        alive = [look for look in looks if not look.gone]
        if not any(look.record.counter("optimizer_steps") or look.record.counter("backwards") for look in alive):
            return FIRST
        outside = [look for look in alive if look.main is not None and look.main.wait == "none"]
        phases = _phases(outside) or {"collective"}
        return max(self._limit_of(phase) for phase in phases)

    def _limit_of(self, phase: str) -> float:
        longest = self._longest.get(phase)
        if longest is None:
            return LEAST if phase in ("forward", "backward", "optimizer", "collective") else FIRST
        return max(LEAST, TIMES_LONGEST * longest)

    def stalled(self, looks: Sequence[Look]) -> bool:
        """Nobody moves, or somebody waits for somebody who does not, for longer than the limit."""
        limit = self.limit(looks)
        if self.quiet_for >= limit:
            return True
        alive = [look for look in looks if not look.gone and look.main is not None]
        waiting = [look for look in alive if look.main is not None and look.main.wait != "none" and look.quiet >= limit]
        still = [look for look in alive if look.main is not None and look.main.wait == "none" and look.quiet >= limit]
        return bool(waiting) and bool(still)

    def marks(self, looks: Sequence[Look]) -> tuple[float, ...]:
        """The ages of a standstill at which the limit is reached."""
        limit = self.limit(looks)
        return (limit, limit + 0.5, limit + 1.0)


def _phases(looks: Sequence[Look]) -> set[str]:
    return {look.main.phase for look in looks if look.main is not None}
