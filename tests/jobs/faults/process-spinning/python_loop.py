"""Rank 1 never leaves a search for a good crop: a while loop whose condition cannot come true."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-spinning culprits=1 outcome=hung

import random

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def random_crop(width, height, wanted):
    while True:
        left = random.randrange(width)  # <- also
        top = random.randrange(height)  # <- here
        if left + wanted <= width and top + wanted <= height:  # <- also
            return left, top


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(25):
        wanted = 200 if rank == 1 and step == 8 else 32
        crop = random_crop(128, 128, wanted)  # <- also
        optimizer.zero_grad()
        model(torch.tensor([crop], dtype=torch.float32)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
