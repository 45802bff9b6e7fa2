"""DDP's own variety: find_unused_parameters, static_graph, a communication hook, a bucket view, and
buffers off.
"""
# job: nproc=2 timeout=60
# expect: healthy

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP


class Forked(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 1), nn.Linear(4, 1)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.left(x) if self.calls % 2 else self.right(x)


def train(model, steps=12):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).mean().backward()
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    train(DDP(Forked(), find_unused_parameters=True))
    checkpointed = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    train(DDP(checkpointed, static_graph=True, broadcast_buffers=False))
    hooked = DDP(nn.Linear(4, 1), gradient_as_bucket_view=True)
    hooked.register_comm_hook(dist.group.WORLD, fp16_compress_hook)
    train(hooked)
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
