"""Rank 0 alone evaluates the DDP model after training; its BatchNorm buffers are broadcast in every
forward.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=evaluation-on-one-rank also=lone-collective culprits=0 outcome=hung|crashed

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU())
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        return self.head(self.body(x))


@torch.no_grad()
def evaluate(model):
    model.eval()
    right = 0
    for _ in range(4):
        x, y = torch.randn(32, 12), torch.randint(0, 3, (32,))
        right += (model(x).argmax(1) == y).sum().item()  # <- here
    model.train()
    return right / 128


def main():
    dist.init_process_group("gloo")
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for _ in range(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.randn(16, 12)), torch.randint(0, 3, (16,))).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} trained")
    if dist.get_rank() == 0:  # <- also
        print("accuracy", evaluate(model))  # <- also
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
