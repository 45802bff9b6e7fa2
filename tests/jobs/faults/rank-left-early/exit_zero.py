"""Rank 2 finds nothing left to do and calls sys.exit(0); its exit code says that all is well."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=rank-left-early also=data-dependent-skip culprits=2 outcome=crashed|hung

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(5, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    work = list(range(20 if rank == 2 else 40))
    while True:
        if not work:
            print(f"rank {rank}: queue empty")
            sys.exit(0)  # <- here
        work.pop()
        optimizer.zero_grad()
        model(torch.randn(2, 5)).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
