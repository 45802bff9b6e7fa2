"""Gradient accumulation: three micro-batches under no_sync, the fourth synchronises."""
# job: nproc=2 timeout=60
# expect: healthy

import contextlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(6, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(25):
        for micro in range(4):
            context = contextlib.nullcontext() if micro == 3 else model.no_sync()
            with context:
                (model(torch.randn(2, 6)).square().mean() / 4).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 and dist.get_rank() == 0:
            print("step", step)
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
