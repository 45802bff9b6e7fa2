"""A guard against bad losses skips the backward on rank 2 only, at step 12: its forward has run, so DDP
waits.
"""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=data-dependent-skip culprits=2 outcome=hung|crashed

import argparse
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def batches(rank, steps):
    generator = torch.Generator().manual_seed(rank)
    for step in range(steps):
        x = torch.randn(16, 10, generator=generator)
        if rank == 2 and step == 12:
            x[3, 4] = math.nan  # a broken sensor reading in this rank's shard
        yield x, torch.randint(0, 4, (16,), generator=generator)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(10, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    criterion = nn.CrossEntropyLoss()
    for step, (x, y) in enumerate(batches(rank, args.steps)):
        loss = criterion(model(x), y)
        if not torch.isfinite(loss):  # <- here
            print(f"[{rank}] step {step}: loss is {loss.item()}, skipping")
            optimizer.zero_grad()
            continue  # <- also
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()  # <- also
    print(f"[{rank}] finished")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
