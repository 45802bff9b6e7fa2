"""Where a rendered text goes: to the terminal, or to a file that `--output` names."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from rankcall.errors import RankcallError
from rankcall.render.page import screen_width, wants_color, write


@dataclass(frozen=True, slots=True)
class Target:
    """A file, or standard output where `path` is None. `color` None: as the terminal allows."""

    path: Path | None = None
    color: bool | None = None

    @property
    def colored(self) -> bool:
        if self.path is not None or self.color is False:
            return False
        return True if self.color else wants_color(sys.stdout)

    @property
    def width(self) -> int:
        return screen_width(sys.stdout)

    def put(self, text: str) -> None:
        """Write the text. Raises RankcallError if it cannot be written, BrokenPipeError if nobody reads on."""
        try:
            if self.path is None:
                write(text, sys.stdout)
            else:
                self.path.write_text(text, encoding="utf-8", errors="backslashreplace")
        except BrokenPipeError:
            raise
        except OSError as error:
            name = "standard output" if self.path is None else f"--output {self.path}"
            raise RankcallError(f"{name} cannot be written: {error.strerror or error}.") from error
