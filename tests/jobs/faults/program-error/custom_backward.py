"""A hand-written autograd function raises in its backward on rank 1; the exception passes through the
engine.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=program-error culprits=1 outcome=crashed

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class ClippedLog(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp_min(1e-3).log()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        if (x < -50).any():
            raise FloatingPointError("log of a value below -50")  # <- here
        return gradient / x.clamp_min(1e-3)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(20):
        x = torch.rand(4, 1)
        if rank == 1 and step == 8:
            x *= 1e6
            x -= 2e6 * torch.sign(model.module.weight.detach())
            x[0] = -1e6 * torch.sign(model.module.weight.detach())
        optimizer.zero_grad()
        ClippedLog.apply(model(x)).sum().backward()  # <- also
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
