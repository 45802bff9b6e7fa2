"""The group is destroyed and made again in one process, as hyper-parameter searches do. Each incarnation has a part of
the store to itself: otherwise it may find the addresses of the one before, and hang.
"""
# job: nproc=2 timeout=60
# expect: healthy

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def trial(rate, store):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=dist.PrefixStore(f"rate{rate}", store), rank=rank, world_size=world)
    model = DDP(torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(15 if rate > 0.05 else 25):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 5)).square().mean()
        loss.backward()
        optimizer.step()
    result = loss.detach()
    dist.all_reduce(result)
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()
    return result.item()


if __name__ == "__main__":
    base = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    print({rate: trial(rate, base) for rate in (0.1, 0.03, 0.01)})
