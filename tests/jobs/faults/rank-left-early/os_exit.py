"""A signal handler's way out on rank 1: os._exit(0) in the middle of the loop, no cleanup, no message."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=rank-left-early culprits=1 outcome=crashed|hung

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Budget:
    def __init__(self, steps):
        self.left = steps

    def spend(self):
        self.left -= 1
        if self.left == 0:
            os._exit(0)  # <- here


def main():
    dist.init_process_group("gloo")
    budget = Budget(15 if dist.get_rank() == 1 else 10**9)
    model = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        budget.spend()  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
