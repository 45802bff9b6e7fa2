"""Rank 0 takes 8 s to save while the others wait at the barrier. Slow, but nothing is wrong."""
# job: nproc=2 run_args="" timeout=60
# expect: pitfall=slow-checkpoint culprits=0 outcome=completed as=note|nothing

import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class SlowDisk:
    """A file on a disk that takes its time."""

    def __init__(self, file, seconds):
        self.file = file
        self.seconds = seconds

    def write(self, data):
        return self.file.write(data)

    def flush(self):
        time.sleep(self.seconds)
        self.seconds = 0
        self.file.flush()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(32, 32))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(40):
        optimizer.zero_grad()
        model(torch.randn(4, 32)).mean().backward()
        optimizer.step()
        if step == 20:
            if rank == 0:
                with tempfile.TemporaryFile() as file:
                    torch.save(model.module.state_dict(), SlowDisk(file, 8))  # <- here
            dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
