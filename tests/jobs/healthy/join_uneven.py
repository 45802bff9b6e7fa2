"""Uneven inputs, done right: DDP under the Join context manager, rank 0 has 5 batches and rank 2 has 15."""
# job: nproc=3 timeout=60
# expect: healthy

import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = [torch.randn(2, 4) for _ in range(5 + 5 * rank)]
    with Join([model]):
        for x in inputs:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
    dist.barrier()
    print(rank, len(inputs), "batches")
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
