"""A DataLoader worker of rank 1 is stuck in a read; the rank waits for its batch, the other rank in
backward.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=loader-stalled culprits=1 outcome=hung

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        if index == 101:
            self.read_slowly()  # <- also
        return torch.full((6,), float(index))

    def read_slowly(self):
        time.sleep(3600)  # <- here


def main():
    dist.init_process_group("gloo")
    sampler = DistributedSampler(Images(), shuffle=False)
    loader = DataLoader(Images(), batch_size=4, sampler=sampler, num_workers=2)
    model = DDP(torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for batch in loader:  # <- also
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
