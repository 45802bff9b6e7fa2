"""A worker of rank 1's loader is killed with SIGKILL, as the kernel does when memory runs out."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=loader-worker-died also=host-out-of-memory culprits=1 outcome=crashed|hung

import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Volumes(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        if index == 91:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(4)


def main():
    dist.init_process_group("gloo")
    volumes = Volumes()
    loader = DataLoader(volumes, 4, sampler=DistributedSampler(volumes, shuffle=False), num_workers=2)
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for batch in loader:  # <- here
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
        print("epoch", epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
