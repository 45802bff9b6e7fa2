"""DataLoader workers by fork, spawn and forkserver, one after the other; none of them is a rank."""
# job: nproc=2 timeout=90
# expect: healthy

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Squares(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.tensor([float(index) ** 2])


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    squares = Squares()
    for method in ("fork", "spawn", "forkserver"):
        sampler = DistributedSampler(squares)
        loader = DataLoader(squares, 4, sampler=sampler, num_workers=1, multiprocessing_context=method)
        for batch in loader:
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(method, "done")
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
