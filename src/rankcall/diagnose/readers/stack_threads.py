"""A stack sample -> the threads of a snapshot: what each waits in, its phase, its stack."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rankcall.diagnose.readers.native_waits import gloo_operation
from rankcall.diagnose.readers.stack_phases import phase_of
from rankcall.diagnose.readers.stack_places import is_user, names_of_native, site_of_stack
from rankcall.diagnose.readers.stack_sample import StackSample, StackThread, python_frames
from rankcall.diagnose.readers.stack_waits import wait_from_stack
from rankcall.snapshot import Thread, Wait


def snapshot_threads(sample: StackSample, sources: Mapping[str, str] | None = None) -> tuple[Thread, ...]:
    """A sample's threads as a snapshot holds them: the main one, and those of the others that run the user's code or
    wait in an operation. Stacks are Python's; a thread that shows native frames only keeps those."""
    found = []
    waits = _waits(sample, sources or {})
    for thread, wait in zip(sample.threads, waits, strict=True):
        python = python_frames(thread.frames)
        if not thread.main and wait is None and not any(is_user(frame.file) for frame in python):
            continue
        found.append(
            Thread(
                tid=thread.tid,
                name=thread.name,
                main=thread.main,
                phase=phase_of(thread.frames, wait) or "idle",
                phase_site=site_of_stack(thread.frames),
                wait=wait,
                stack=python or thread.frames,
            )
        )
    return tuple(found)


def _waits(sample: StackSample, sources: Mapping[str, str]) -> list[Wait | None]:
    """What each thread waits in. gloo's own threads show which operation the main one waits for; a backward pass waits
    for the operation that autograd's thread is in."""
    waits = [wait_from_stack(thread.frames, sources) for thread in sample.threads]
    main = next((at for at, thread in enumerate(sample.threads) if thread.main), None)
    if main is None:
        return waits
    mine = waits[main]
    if mine is not None and mine.kind == "collective" and not mine.op:
        running = {op for thread in sample.threads if (op := gloo_operation(names_of_native(thread.frames)))}
        if len(running) == 1:
            waits[main] = msgspec.structs.replace(mine, op=running.pop(), backend="gloo")
    elif mine is None and phase_of(sample.threads[main].frames, None) == "backward":
        for at, wait in enumerate(waits):
            if wait is not None and wait.kind == "collective" and _is_autograds(sample.threads[at]):
                site = site_of_stack(sample.threads[main].frames)
                waits[main] = msgspec.structs.replace(wait, site=site)
                waits[at] = None
                break
    return waits


def _is_autograds(thread: StackThread) -> bool:
    """A thread that autograd started: it runs hooks of the backward pass, and no thread function of Python's."""
    return not thread.main and not any(
        frame.function.endswith("_bootstrap") and frame.file.endswith("threading.py") for frame in thread.frames
    )
