"""Rank 1 needs 150 ms for what takes the others 5: every step is late, all complete."""
# job: nproc=2 run_args="" timeout=60
# expect: pitfall=straggler culprits=1 outcome=completed as=note|nothing

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def load(rank):
    time.sleep(0.15 if rank == 1 else 0.005)  # <- here
    return torch.randn(8, 16)


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        batch = load(dist.get_rank())  # <- also
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
