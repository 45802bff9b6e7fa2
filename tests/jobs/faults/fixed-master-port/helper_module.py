"""A setup(rank, world_size) from a tutorial, in a helper file, is called under torchrun: its MASTER_PORT
wins.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60 files=_ddp_setup.py
# expect: pitfall=fixed-master-port also=master-unreachable culprits=all outcome=hung

import os

import torch
from _ddp_setup import cleanup, setup
from torch.nn.parallel import DistributedDataParallel as DDP


def demo_basic(rank, world_size):
    setup(rank, world_size)  # <- also
    model = DDP(torch.nn.Linear(10, 5))
    model(torch.randn(20, 10)).sum().backward()
    cleanup()


if __name__ == "__main__":
    demo_basic(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
