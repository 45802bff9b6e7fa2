"""Joins every thread it can list, closes every file it did not open, and lets go of what failed."""

import os
import sys
import threading
import weakref

import torch
import torch.distributed as dist

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))


class Big:
    pass


def fails() -> "weakref.ref[Big]":
    big = Big()
    kept.append(weakref.ref(big))
    torch.autograd.backward(None)  # type: ignore[arg-type]


kept: list["weakref.ref[Big]"] = []
try:
    fails()
except (RuntimeError, TypeError, AttributeError):
    pass
freed = kept[0]() is None
dist.destroy_process_group()
others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
for thread in others:
    thread.join()
os.closerange(3, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 70_000 else 70_000)
for number in range(80):
    with open(os.path.join(sys.argv[1], f"data-{number}"), "w") as file:
        file.write("mine")
files = [open(os.path.join(sys.argv[1], f"data-{number}"), "r+") for number in range(80)]  # noqa: SIM115 (left open on purpose)
print(f"joined {len(others)}, freed {freed}")
