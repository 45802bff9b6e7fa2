"""torch.compile around DDP (aot_eager, so that no C++ compiler is needed), with a re-compile for the
last batch.
"""
# job: nproc=2 timeout=90
# expect: healthy

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    model = torch.compile(DDP(net), backend="aot_eager")
    optimizer = torch.optim.AdamW(net.parameters())
    for epoch in range(2):
        for size in (8, 8, 8, 8, 5):
            optimizer.zero_grad()
            model(torch.randn(size, 8)).square().mean().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print("epoch", epoch)
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
