"""Rank 0's model has a branch that the others do not take on this batch: it traces a graph of thousands
of nodes while the others wait. It would come to an end, but not soon.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=90
# expect: pitfall=compile-skew culprits=0 outcome=hung|completed

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Unrolled(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(8, 8)

    def forward(self, x, steps: int):
        for _ in range(steps):
            x = torch.tanh(self.cell(x)) + x.sin() * 0.01
        return x


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch._dynamo.config.recompile_limit = 64
    model = Unrolled()
    compiled = torch.compile(model, backend="aot_eager")
    wrapped = DDP(compiled)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-3)
    for step in range(8):
        steps = 9000 if rank == 0 and step == 5 else 2
        optimizer.zero_grad()
        wrapped(torch.randn(2, 8), steps).mean().backward()  # <- here
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
