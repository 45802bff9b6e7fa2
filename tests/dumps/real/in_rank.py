"""One rank of a real job: python -m dumps.real.in_rank SCENARIO FOLDER, with RANK and the others in the environment.

A thread waits for a sign from the runner and then writes dumps and stacks, as people do who have prepared for a hang;
the scenario itself knows nothing of it.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from .scenario import Form, Job, Scenario, all_scenarios

_LOOK_S = 0.02


def write_look(job: Job, name: str) -> None:
    """All forms of this rank's dump, and its stacks, below folder/NAME."""
    import torch._C._distributed_c10d as c10d

    writers: dict[Form, Callable[[], bytes]] = {
        "pickle": lambda: c10d._dump_fr_trace(True, False, False),
        "json": lambda: c10d._dump_fr_trace_json(True, False),
        "pickle-with-stacks": lambda: c10d._dump_fr_trace(True, True, False),
    }
    base = job.folder / name
    stacks = base / "stacks"
    stacks.mkdir(parents=True, exist_ok=True)
    with open(stacks / f"rank{job.rank}.txt", "w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    for form, written in writers.items():
        (base / form).mkdir(exist_ok=True)
        ending = ".json" if form == "json" else ""
        _write(base / form / f"comm_lib_trace_rank_{job.rank}{ending}", written())


def _write(path: Path, data: str | bytes) -> None:
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def _answer(job: Job, names: list[str]) -> None:
    """Write each look when its sign comes; end with the runner."""
    runner = os.getppid()
    while True:
        for name in names:
            if job.told(f"look-{name}-{job.rank}") and not job.told(f"written-{name}-{job.rank}"):
                write_look(job, name)
                job.tell(f"written-{name}-{job.rank}")
        if os.getppid() != runner:
            os._exit(3)
        time.sleep(_LOOK_S)


def _run(scenario: Scenario, job: Job) -> None:
    try:
        scenario.run(job)
    except Exception:
        traceback.print_exc()
        if not job.told("over"):
            write_look(job, "error")
            job.tell(f"failed-{job.rank}")
    job.tell(f"finished-{job.rank}")
    job.wait_for("go")


def main() -> None:
    name, folder = sys.argv[1:]
    job = Job(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(folder))
    scenario = all_scenarios()[name]
    import torch.distributed as dist

    if scenario.healthy and not scenario.cold:  # else the first dump with stacks does, which holds the job up
        import torch._dynamo
        import torch._inductor  # noqa: F401
    threading.Thread(target=_answer, args=(job, [look.name for look in scenario.looks]), daemon=True).start()
    _run(scenario, job)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
