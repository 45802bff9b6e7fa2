"""A layer is left out at random on each rank (stochastic depth): an error in the iteration after the
first gap.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=unused-parameters culprits=1|all outcome=crashed|hung

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Block(nn.Module):
    def __init__(self, width, skip_at):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.skip_at, self.calls = skip_at, 0

    def forward(self, x):
        self.calls += 1
        return x if self.calls == self.skip_at else x + self.layer(x).relu()


def main():
    dist.init_process_group("gloo")
    skip_at = 5 if dist.get_rank() == 1 else -1
    net = nn.Sequential(nn.Linear(4, 6), Block(6, -1), Block(6, skip_at), nn.Linear(6, 1))
    model = DDP(net)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(12):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).mean()  # <- here
        loss.backward()  # <- also
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
