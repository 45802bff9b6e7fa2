"""Rank 0 evaluates a DDP model that has no buffers: such a forward is no collective, and the job is
well.
"""
# job: nproc=2 timeout=60
# expect: healthy as=nothing|note|warning

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(4, 4)).mean().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            model.eval()
            with torch.no_grad():
                print(epoch, model(torch.randn(16, 4)).mean().item())
            model.train()
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
