"""Rank 0's only loader worker needs 0.3 s a batch, the others' next to nothing."""
# job: nproc=2 run_args="" timeout=60
# expect: pitfall=straggler also=slow-preprocessing,loader-stalled culprits=0 outcome=completed as=note|nothing

import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset


class Tiles(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 100

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.randn(8)


def main():
    dist.init_process_group("gloo")
    tiles = Tiles(0.075 if dist.get_rank() == 0 else 0.0)
    model = fully_shard(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(tiles, batch_size=4, num_workers=1):  # <- here
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
