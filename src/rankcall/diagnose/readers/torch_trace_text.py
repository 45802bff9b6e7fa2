"""What ProcessGroupNCCL's watchdog logs when an operation times out: where the call was made. Untrusted text.

[rank3]:[E1023 ProcessGroupNCCL.cpp:1895] Stack trace of the failed collective:
#0 all_reduce from /opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:2501
#1 average from /home/me/train.py:57
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rankcall.diagnose.readers.stack_sample import LONGEST_TEXT, StackSample, made_thread
from rankcall.snapshot import Frame

_HEAD = "Stack trace of the failed collective:"
_RANK = re.compile(r"\[rank(\d{1,7})\]|\bRank (\d{1,7})\b")
_FRAME = re.compile(r"(?:\[[\w.]{1,40}\]:?)?\s*#\d{1,4} (.{1,500}?) from (\S.{0,500}):(\d{1,9})\s*$")
_MOST_RAW_FRAMES = 2_000
FAILED_COLLECTIVE = "failed collective"


def samples_from_torch_trace(lines: Iterable[str]) -> list[StackSample]:
    """One sample for each trace; its only thread has the state "failed collective": the frames are those of the call,
    and the thread itself may long be elsewhere."""
    found: list[StackSample] = []
    frames: list[Frame] | None = None
    rank: int | None = None
    for line in lines:
        if _HEAD in line:
            found += _sample(rank, frames)
            said = _RANK.search(line)
            rank = int(said.group(1) or said.group(2)) if said else None
            frames = []
        elif frames is not None and (frame := _FRAME.match(line)):
            if len(frames) < _MOST_RAW_FRAMES:
                name, file, number = frame.groups()
                frames.append(Frame(file[:LONGEST_TEXT], int(number), name.strip()[:LONGEST_TEXT]))
        elif frames:
            found += _sample(rank, frames)
            frames = None
    return found + _sample(rank, frames)


def _sample(rank: int | None, frames: list[Frame] | None) -> list[StackSample]:
    if not frames:
        return []
    return [StackSample(rank, "", None, "", (made_thread(0, frames, main=True, state=FAILED_COLLECTIVE),))]
