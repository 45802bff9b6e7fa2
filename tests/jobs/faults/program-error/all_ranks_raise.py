"""The same bug on every rank: matrices that do not multiply, in the first forward."""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=program-error culprits=all|0|1|2|3 outcome=crashed

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(16, 32)
        self.decoder = nn.Linear(30, 16)

    def forward(self, x):
        return self.decoder(self.encoder(x).relu())  # <- here


def main():
    dist.init_process_group("gloo")
    model = DDP(Network())
    for _ in range(3):
        loss = model(torch.randn(4, 16)).mean()  # <- also
        loss.backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
