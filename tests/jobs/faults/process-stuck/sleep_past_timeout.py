"""Rank 1 sleeps for longer than the group's time-out of 8 s allows: the others raise while it still
sleeps.
"""
# job: nproc=3 timeout=60
# expect: pitfall=process-stuck also=timeout-too-short culprits=1 outcome=crashed|hung

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def wait_for_quota(step):
    if step == 8:
        time.sleep(600)  # <- here


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    model = DDP(torch.nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        if dist.get_rank() == 1:
            wait_for_quota(step)  # <- also
        optimizer.zero_grad()
        model(torch.randn(1, 3)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
