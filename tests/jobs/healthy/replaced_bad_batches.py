"""Bad samples are replaced, not skipped: exceptions are handled on one rank only, yet all take the same
steps.
"""
# job: nproc=2 timeout=60
# expect: healthy

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Patched(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        try:
            return self.decode(index)
        except ValueError:
            return torch.zeros(3)

    def decode(self, index):
        if dist.get_rank() == 1 and index % 9 == 4:
            raise ValueError(f"sample {index} is damaged")
        return torch.randn(3)


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(Patched(), batch_size=4):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
