"""Which process is a rank, and the start of its recording.

A process becomes one at `init_process_group`, always. Before that it is provisional if it has a rank variable and
no provisional ancestor. DataLoader workers, resource trackers and spawn helpers inherit RANK and are none; a fork
switches the record off in the child, which may become a rank of its own.
"""

from __future__ import annotations

import os
import socket
import sys
from types import ModuleType

from rankcall.record.recorder import recorder
from rankcall.record.writer import Writer, now, process_start

FOLDER = "RANKCALL_RECORDS"  # the node-local record folder
ANCESTOR = "RANKCALL_PROVISIONAL"  # "pid-start" of the provisional process this one descends from
LAUNCHER = "RANKCALL_LAUNCHER"  # pid of the launcher whose direct children must die with it
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


def begin() -> None:
    """Called once by the injected sitecustomize, before the program."""
    folder = os.environ.get(FOLDER)
    if not folder or not os.path.isdir(folder) or sys.platform != "linux":
        return
    from rankcall.record import exits, modules, stacks

    _die_with_launcher()
    stacks.register(folder)
    os.register_at_fork(after_in_child=_after_fork)
    modules.install()
    exits.install()
    if not os.environ.get(ANCESTOR) and _has_rank_variable():
        os.environ[ANCESTOR] = f"{os.getpid()}-{process_start()}"
        _record(folder)


def become_rank() -> None:
    """Called at the entry of init_process_group."""
    folder = os.environ.get(FOLDER)
    if recorder.writer is None and folder and os.path.isdir(folder):
        _record(folder)


def torch_imported(torch: ModuleType) -> None:
    """Learn where torch's own files are: frames in them are not the user's."""
    if torch.__file__:
        recorder.torch_root = os.path.dirname(torch.__file__) + os.sep
        recorder._kinds.clear()


def _has_rank_variable() -> bool:
    return any(os.environ.get(name, "").isdigit() for name in RANK_VARIABLES)


def _record(folder: str) -> None:
    try:
        from rankcall.record import layout

        pid, start, host = os.getpid(), process_start(), socket.gethostname()
        writer = Writer(os.path.join(folder, layout.record_name(host, pid, start)), pid, start)
        recorder.start(writer)
        recorder.identify(
            host=host,
            pid=pid,
            start=start,
            folder=folder,
            began=now(),
            attempt=_number("TORCHELASTIC_RESTART_COUNT") or 0,
            launcher_rank=_first_number(RANK_VARIABLES),
            local_rank=_first_number(("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")),
            launcher_world_size=_first_number(("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")),
            launcher_master=_master(),
            ancestor=os.environ.get(ANCESTOR, ""),
            initialized="no",
            command=_command(),
        )
    except Exception:
        # No room, no permission: the job runs on unrecorded, and the watcher sees that there is no record.
        recorder.stop()


def _command() -> list[str]:
    arguments = sys.orig_argv if hasattr(sys, "orig_argv") else sys.argv
    return [str(argument)[:200] for argument in arguments[:30]]


def _master() -> str:
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    return f"{address}:{port}" if address or port else ""


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None


def _first_number(names: tuple[str, ...]) -> int | None:
    for name in names:
        value = _number(name)
        if value is not None:
            return value
    return None


def _after_fork() -> None:
    """In a forked child: this record is the parent's. Stacks go to a file of the child's own."""
    try:
        recorder.stop()
        folder = os.environ.get(FOLDER)
        if folder:
            from rankcall.record import stacks

            stacks.register(folder)
    except Exception:
        recorder.on = False


def _die_with_launcher() -> None:
    """A direct child of the launcher is killed with it, even by SIGKILL: no orphans."""
    if os.environ.get(LAUNCHER) != str(os.getppid()):
        return
    try:
        import ctypes
        import signal

        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.environ.get(LAUNCHER) != str(os.getppid()):
            os.kill(os.getpid(), signal.SIGKILL)  # it died between the two
    except (OSError, AttributeError):
        return
