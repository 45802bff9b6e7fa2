"""monitored_barrier every few steps: rank 0 collects the others one by one, which looks like different
operations.
"""
# job: nproc=3 timeout=60
# expect: healthy

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(30):
        optimizer.zero_grad()
        model(torch.randn(2, 2)).sum().backward()
        optimizer.step()
        if step % 6 == 5:
            dist.monitored_barrier(timeout=timedelta(seconds=30), wait_all_ranks=True)
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
