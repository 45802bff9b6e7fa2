"""A worker of rank 0's DataLoader leaves with os._exit; rank 0 learns of it from the loader, rank 1 from
gloo.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=loader-worker-died culprits=0 outcome=crashed|hung

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 200

    def __getitem__(self, index):
        if self.rank == 0 and index == 90:
            os._exit(3)
        return torch.randn(4)


def main():
    dist.init_process_group("gloo")
    loader = DataLoader(Records(dist.get_rank()), batch_size=5, num_workers=1)
    model = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:  # <- here
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
