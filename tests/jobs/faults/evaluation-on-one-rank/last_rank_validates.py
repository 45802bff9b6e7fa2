"""A class-based trainer leaves validation to its last rank, between epochs, with a loader of its own."""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=evaluation-on-one-rank also=lone-collective culprits=3 outcome=hung|crashed

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=0.2), nn.Linear(8, 1))
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        train, valid = TensorDataset(torch.randn(160, 4)), TensorDataset(torch.randn(20, 4))
        self.train_loader = DataLoader(train, 4, sampler=DistributedSampler(train))
        self.valid_loader = DataLoader(valid, 10)

    def train_epoch(self):
        self.model.train()
        for (x,) in self.train_loader:
            self.optimizer.zero_grad()
            self.model(x).square().mean().backward()
            self.optimizer.step()

    def validate(self):
        self.model.eval()
        with torch.no_grad():
            return sum(self.model(x).sum().item() for (x,) in self.valid_loader)  # <- here

    def run(self):
        for epoch in range(3):
            self.train_epoch()
            if self.rank == self.world - 1:  # <- also
                print("validation", epoch, self.validate())  # <- also


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer().run()
    dist.barrier()
    dist.destroy_process_group()
