"""Whose code the frames of a stack are: the user's, an installed package's, torch's own."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from rankcall.diagnose.frames import is_user_file
from rankcall.diagnose.readers.stack_sample import is_native, python_frames
from rankcall.snapshot import Frame

# Code that torch.compile wrote into a temporary folder.
_GENERATED = re.compile(r"/torchinductor_[^/]+/|/c[a-z2-7]{50,51}\.py$")


def site_of_stack(frames: Iterable[Frame]) -> Frame | None:
    """The user's innermost line; where no file is the user's own (a package that was installed), the innermost one
    outside torch and Python itself."""
    python = python_frames(frames)
    own = next((frame for frame in python if is_user(frame.file)), None)
    return own or next((frame for frame in python if is_package(frame.file)), None)


@functools.lru_cache(maxsize=8192)
def is_user(file: str) -> bool:
    """True for a file that is neither installed nor written by torch.compile."""
    return is_user_file(file, {}) and _GENERATED.search(file) is None


def is_package(file: str) -> bool:
    """True for an installed package other than torch."""
    return ("site-packages/" in file or "dist-packages/" in file) and "-packages/torch" not in file


def names_of_native(frames: Iterable[Frame]) -> list[str]:
    """The names of the native frames, innermost first."""
    return [frame.function for frame in frames if is_native(frame)]


def last_name(function: str) -> str:
    """`_exception_logger.<locals>.wrapper` as `wrapper`: Python below 3.11 knows no more than that."""
    return function.rpartition(".")[2]
