"""num_workers=0: the Dataset of rank 0 itself hangs in a read (a sleep stands for a dead network disk)."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=loader-stalled also=process-stuck,storage-unreachable culprits=0 outcome=hung

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class NetworkFiles(Dataset):
    def __init__(self, dead):
        self.dead = dead

    def __len__(self):
        return 120

    def __getitem__(self, index):
        data = self.read(index)  # <- also
        return torch.tensor(data)

    def read(self, index):
        if index in self.dead:
            time.sleep(86_400)  # <- here
        return [float(index), 1.0]


def main():
    dist.init_process_group("gloo")
    dataset = NetworkFiles(dead={50} if dist.get_rank() == 0 else set())
    model = DDP(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for batch in DataLoader(dataset, batch_size=6, num_workers=0):  # <- also
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
