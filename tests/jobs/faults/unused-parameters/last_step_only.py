"""The job trains one step only: the gradients stay local and nothing complains. A wrong result, in
silence.
"""
# job: nproc=2 run_args="" timeout=60
# expect: pitfall=unused-parameters culprits=all outcome=completed as=nothing|note|warning

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class WithSpare(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 1)
        self.spare = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return self.used(x)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(WithSpare())
    torch.manual_seed(dist.get_rank())
    model(torch.randn(8, 4)).mean().backward()
    print(f"rank {dist.get_rank()}: {model.module.used.weight.grad.sum().item():.4f}")
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
