"""Signal handlers that raise, at any moment: none of their exceptions may get lost in a hook."""

import os
import signal
import time

import torch
import torch.distributed as dist

from rankcall.record.recorder import recorder


class Late(Exception):
    pass


def handler(number: int, frame: object) -> None:
    raise Late


os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
dist.init_process_group("gloo")
signal.signal(signal.SIGALRM, handler)
weight = torch.ones(2, requires_grad=True)
box = torch.ones(2)
lost = 0
for _ in range(150):
    signal.setitimer(signal.ITIMER_REAL, 0.003)
    end = time.monotonic() + 1
    try:
        while time.monotonic() < end:
            weight.sum().backward()
            dist.all_reduce(box)
        lost += 1
    except Late:
        pass
before = recorder.slot.operations
dist.all_reduce(box)
print(f"lost {lost}, recorded {recorder.slot.operations == before + 1 and recorder.slot.inside == 0}")
