"""A package started as `torchrun -m trainpkg.train`, with relative imports and options."""
# job: nproc=2 module=trainpkg.train args="--width 6" timeout=60
# expect: healthy

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from .model import build


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, required=True)
    width = parser.parse_args().width
    dist.init_process_group("gloo")
    model = DDP(build(width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(4, width)).mean().backward()
        optimizer.step()
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
