"""Native code calls abort() on rank 0 between two steps: SIGABRT, as after a failed assertion in C++."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=crashed-by-signal culprits=0 outcome=crashed

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def native_augment(x, rank, step):
    if rank == 0 and step == 9:
        os.abort()  # <- here
    return x + 0.1


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        x = native_augment(torch.randn(2, 4), dist.get_rank(), step)  # <- also
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
