"""ZeroRedundancyOptimizer: the optimizer's own step broadcasts, from as many sources as there are ranks."""
# job: nproc=2 timeout=60
# expect: healthy

import time

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Sequential(*[torch.nn.Linear(10, 10) for _ in range(4)]))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(2, 10)).square().mean().backward()
        optimizer.step()
        schedule.step()
    optimizer.consolidate_state_dict(to=0)
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
