"""Rank 0 validates for 20 s, with steady progress, and the group's time-out is 8 s: the others give up
on a rank that is well.
"""
# job: nproc=2 timeout=60
# expect: pitfall=timeout-too-short also=process-stuck,straggler culprits=0 outcome=crashed|hung

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


@torch.no_grad()
def validate(module):
    total = 0.0
    for _ in range(100):
        time.sleep(0.2)  # <- here
        total += module(torch.randn(8, 4)).mean().item()  # <- also
    return total / 100


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))  # <- also
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).mean().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(epoch, validate(model.module))  # <- also
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
