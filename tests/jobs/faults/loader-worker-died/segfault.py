"""A decoder written in C crashes in a worker of rank 0 (SIGSEGV by ctypes), under a spawned loader."""
# job: nproc=2 run_args="--stall-after 8" timeout=90
# expect: pitfall=loader-worker-died culprits=0 outcome=crashed|hung

import ctypes

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Videos(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if self.rank == 0 and index == 21:
            ctypes.string_at(8)
        return torch.full((2,), float(index))


def main():
    dist.init_process_group("gloo")
    loader = DataLoader(Videos(dist.get_rank()), 4, num_workers=1, multiprocessing_context="spawn")
    model = DDP(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for batch in loader:  # <- here
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
