"""A lock is held in rank 1 when its DataLoader forks the workers; in a worker nobody will ever release
it.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=loader-stalled culprits=1 outcome=hung

import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

cache_lock = threading.Lock()
cache = {}


class Cached(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        with cache_lock:  # <- here
            if index not in cache:
                cache[index] = torch.randn(3)
            return cache[index]


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = Cached()
    for epoch in range(3):
        loader = DataLoader(dataset, batch_size=8, num_workers=2, multiprocessing_context="fork")
        if epoch == 2 and dist.get_rank() == 1:
            cache_lock.acquire()
        batches = iter(loader)
        for batch in batches:  # <- also
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
