"""What ranks say because another rank failed first. An echo is never a root; a time-out is one too."""

from __future__ import annotations

import re
from typing import Literal

from rankcall.snapshot import ExceptionNote, Process

_ECHO = re.compile(
    "|".join(
        (
            r"connection (was )?(closed|reset|aborted|refused)",
            r"closed by (remote )?peer",
            r"connection was (likely )?closed",
            r"broken pipe",
            r"timed out (waiting|after|initializing)",
            r"socket ?time-?out",
            r"wait timeout after",
            r"application timeout caused pair closure",
            r"connectfullmesh",
            r"gloo connect",
            r"monitoredbarrier",
            r"failed to recv|recvvalue|recv returned 0|failed to connect to any|failed to send|sendbytes",
            r"watchdog (caught|got) (stuck|collective)",
            r"(nccl|hccl|communicator).{0,40}(abort|remote process exited|peer)",
            r"ncclremoteerror|ncclsystemerror|ncclinternalerror|remote process exited",
            r"dist(network|store|backend)error.{0,80}(timeout|connect|closed)",
            r"(store|tcpstore).{0,60}(timeout|timed out|not reachable|closed)",
            r"some nccl operations have failed or timed out",
            r"watchdog thread terminated",
            r"error in pair|pair->|connect timeout",
            r"the client socket has timed out",
            r"work (timed out|ran time out)|operation timed out",
        )
    ),
    re.IGNORECASE | re.DOTALL,
)
_DISTRIBUTED_TYPES = re.compile(r"(^|\.)(Dist\w*Error|RuntimeError|TimeoutError|ConnectionError|C10dError)$")
_CHAINED = re.compile(r"([\w.]+\.)?(Dist\w*Error|RuntimeError|C10dError)\b")
_FROM_TORCH = re.compile(r"/torch/")
_STOPPED = re.compile(r"(^|\.)(KeyboardInterrupt|SignalException|SystemExit)$")
_TIMEOUT = re.compile(r"timed? ?-?out|timeout", re.IGNORECASE)

# What gloo and NCCL print before they abort the process: the process that dies is not the guilty one.
_ABORT = re.compile(
    r"op\.preamble\.length|gloo::EnforceNotMet|EnforceNotMet|terminate called|c10::DistBackendError|"
    r"Watchdog caught|ncclRemoteError|taking the entire process down|not in the range of slot|"
    r"readComplete|nbytes",
)

Nature = Literal["own", "echo", "stopped"]


def is_echo_text(text: str) -> bool:
    """True when a message speaks of another rank's failure."""
    return _ECHO.search(text) is not None


def is_timeout(text: str) -> bool:
    """True when an echo says that a limit ran out (the others may all be alive)."""
    return _TIMEOUT.search(text) is not None


def nature(note: ExceptionNote) -> Nature:
    """Whether an exception is the program's own, another rank's failure arriving here, or a request to stop."""
    if _STOPPED.search(note.type):
        return "stopped"
    if is_echo_text(note.message) and _speaks_for_torch(note):
        return "echo"
    # `raise TrainingError(…) from error`: what was raised on top of an echo is an echo too.
    if any(_CHAINED.match(text) and is_echo_text(text) for text in note.chain):
        return "echo"
    return "own"


def _speaks_for_torch(note: ExceptionNote) -> bool:
    """A program may have sockets of its own: their errors are the program's, not a peer rank's."""
    if _DISTRIBUTED_TYPES.search(note.type) and not note.frames:
        return True
    innermost = note.frames[-1] if note.frames else None
    if innermost is not None and _FROM_TORCH.search(innermost.file):
        return True
    # Errors of C++ carry no torch frame when the user's line called into C++ directly.
    return bool(re.search(r"(^|\.)(Dist\w*Error|RuntimeError|C10dError)$", note.type))


def aborted_by_library(process: Process) -> bool:
    """True when the last lines show the communication library ending the process."""
    return any(_ABORT.search(line) for line in process.log_tail)
