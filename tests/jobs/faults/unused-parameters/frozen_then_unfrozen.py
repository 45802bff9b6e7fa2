"""A model in parts: the decoder runs only with odd epochs' batches, which DDP meets in the second step
of an even one.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=unused-parameters culprits=all outcome=crashed|hung

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"encoder": nn.Linear(6, 3), "decoder": nn.Linear(3, 6), "probe": nn.Linear(3, 2)})

    def forward(self, x, reconstruct):
        code = self.parts["encoder"](x)
        return self.parts["decoder"](code) if reconstruct else self.parts["probe"](code)


def main():
    dist.init_process_group("gloo")
    model = DDP(AutoEncoder())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        for _ in range(5):
            out = model(torch.randn(2, 6), reconstruct=epoch % 2 == 1)  # <- here
            out.square().mean().backward()  # <- also
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
