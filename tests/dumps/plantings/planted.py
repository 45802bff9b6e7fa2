"""What a planting hands out: a job's dumps, and what is right to say of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..simulate import Simulation
from ..write import Form, Moment, dump, to_bytes, write_file

Place = tuple[str, int]  # file, line

# What became of a rank's dump.
Lost = Literal["absent", "truncated", "empty", "garbage"]


@dataclass
class Planted:
    """A job's dumps, and what is right to say of them.

    `culprits`: global ranks; empty if the job is well. `where`: the line that is to be named, or None if the dumps
    do not tell. `near`: other lines that are not wrong: where a missing rank was last seen, what it did not enter.
    `done_by`: the ranks whose program was changed: the culprits, or one of them where two are symmetric; of a cycle,
    where everybody is a culprit, those who left the usual order. `also`: other answers that the dumps do not refute.
    """

    kind: str
    seed: int
    culprits: frozenset[int]
    where: Place | None
    description: str
    simulation: Simulation
    moments: list[Moment]
    form: Form
    near: frozenset[Place] = frozenset()
    ambiguous: bool = False
    done_by: frozenset[int] = frozenset()
    also: tuple[frozenset[int], ...] = ()
    lost: dict[int, Lost] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        return not self.culprits

    @property
    def world(self) -> int:
        return self.simulation.layout.world

    def write(self, folder: Path) -> None:
        """Write the files of all ranks that have one."""
        for rank, moment in enumerate(self.moments):
            lost = self.lost.get(rank)
            if lost == "absent":
                continue
            data = to_bytes(dump(self.simulation, rank, moment, self.form), self.form)
            if lost == "truncated":
                data = data[: len(data) * (1 + self.seed % 8) // 9]
            elif lost == "empty":
                data = b""
            elif lost == "garbage":
                data = bytes(byte ^ 0x5A for byte in data[:4000])
            write_file(folder / self.form.file_name(rank), data, moment)
