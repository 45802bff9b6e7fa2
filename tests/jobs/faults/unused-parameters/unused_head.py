"""The auxiliary head is never used in forward: DDP says so when iteration 2 begins."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=unused-parameters culprits=all outcome=crashed

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(10, 10)
        self.main_head = nn.Linear(10, 2)
        self.aux_head = nn.Linear(10, 5)

    def forward(self, x, with_aux=False):
        features = self.trunk(x).relu()
        if with_aux:
            return self.main_head(features), self.aux_head(features)
        return self.main_head(features)


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(TwoHeads())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(4, 10)).pow(2).mean().backward()  # <- here
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
