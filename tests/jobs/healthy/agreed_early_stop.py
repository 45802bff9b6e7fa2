"""Early stopping and a NaN guard, both done right: the decision is all-reduced, and all ranks act alike."""
# job: nproc=2 timeout=60
# expect: healthy

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def any_rank(condition):
    flag = torch.tensor(int(condition))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    skipped = 0
    for step in range(100):
        x = torch.randn(4, 3)
        if rank == 1 and step in (9, 30):
            x[0] = float("nan")
        if any_rank(not torch.isfinite(x).all()):
            skipped += 1
            continue
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        if any_rank(rank == 0 and step >= 60):
            break
    dist.barrier()
    print(rank, step, skipped)
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
