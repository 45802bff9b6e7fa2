"""Uneven data without Join: a rank that is out of data repeats its last batch until all agree that they
are done.
"""
# job: nproc=3 timeout=60
# expect: healthy

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    batches = iter([torch.randn(2, 4) for _ in range(10 + 7 * rank)])
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, own_steps = None, 0
    while True:
        following = next(batches, None)
        busy = torch.tensor([int(following is not None)])
        dist.all_reduce(busy)
        if busy.item() == 0:
            break
        weight = 0.0 if following is None else 1.0
        batch = batch if following is None else following
        optimizer.zero_grad()
        (model(batch).mean() * weight).backward()
        optimizer.step()
        own_steps += following is not None
    dist.barrier()
    print(rank, own_steps)
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
