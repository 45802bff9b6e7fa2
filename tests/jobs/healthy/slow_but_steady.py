"""A rank five times slower than the others, but steady: it holds up nobody for long. May be noted, never
an error.
"""
# job: nproc=3 timeout=60
# expect: healthy as=nothing|note

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    pause = 0.1 if dist.get_rank() == 1 else 0.02
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(80):
        time.sleep(pause)
        optimizer.zero_grad()
        model(torch.randn(8, 4)).mean().backward()
        optimizer.step()
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
