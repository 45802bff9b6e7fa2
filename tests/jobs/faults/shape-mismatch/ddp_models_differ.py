"""DDP compares the parameters' shapes at construction, and says which one differs between rank 0 and
rank 2.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=model-differs also=shape-mismatch culprits=2|all outcome=crashed|hung

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    width = 32 if os.environ["RANK"] != "2" else 48
    model = torch.nn.Sequential(torch.nn.Linear(10, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    model = DDP(model)  # <- here
    model(torch.randn(1, 10)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
