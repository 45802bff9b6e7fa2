"""Rank 2's sequences are far longer: its forward and backward take most of every step, the others wait
in backward.
"""
# job: nproc=3 run_args="" timeout=60
# expect: pitfall=straggler also=unbalanced-load culprits=2 outcome=completed as=note|nothing

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    length = 3000 if dist.get_rank() == 2 else 20
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(40):
        x = torch.randn(4, length, 64)
        optimizer.zero_grad()
        model(x).mean().backward()  # <- here
        optimizer.step()
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
