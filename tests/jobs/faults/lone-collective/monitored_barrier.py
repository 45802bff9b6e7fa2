"""Ranks 0 and 1 meet in a monitored barrier after saving; rank 2 returned before it. Rank 0 names the
missing one.
"""
# job: nproc=3 timeout=60
# expect: pitfall=lone-collective also=data-dependent-skip culprits=2|0,1 outcome=crashed|hung

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def save_shard(model, rank):
    if rank == 2:  # <- also
        return  # <- here
    dist.monitored_barrier(timeout=timedelta(seconds=6))  # <- here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(30):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()  # <- also
        optimizer.step()
        if step == 19:
            save_shard(model, rank)  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
