"""12 s of evaluation on rank 0 in the middle, with the bare module and no collective; the others wait in
a barrier.
"""
# job: nproc=2 timeout=60
# expect: healthy

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


@torch.no_grad()
def evaluate(module):
    module.eval()
    total = 0.0
    for _ in range(24):
        time.sleep(0.5)
        total += module(torch.randn(16, 4)).sum().item()
    module.train()
    return total


def main():
    dist.init_process_group("gloo")
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).mean().backward()
            optimizer.step()
        if epoch == 0:
            if dist.get_rank() == 0:
                print("evaluation", evaluate(model.module))
            dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
