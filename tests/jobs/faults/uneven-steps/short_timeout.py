"""Rank 0 has two batches more than rank 1; the group's time-out of 8 s ends the wait: both die of time-
outs, or of each other. What remains is the record.
"""
# job: nproc=2 timeout=60
# expect: pitfall=uneven-steps culprits=1 outcome=crashed|hung

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = torch.randn(44 if rank == 0 else 36, 3)
    for batch in samples.split(4):  # <- here
        optimizer.zero_grad()
        model(batch).mean().backward()  # <- also
        optimizer.step()
    dist.barrier()  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
