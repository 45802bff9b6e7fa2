from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Launching


@pytest.fixture
def launching(tmp_path: Path) -> Iterator[Launching]:
    """A folder to run scripts in. Whatever still runs there at the end is ended."""
    launching = Launching(tmp_path)
    yield launching
    for process in launching.processes():
        process.kill()
