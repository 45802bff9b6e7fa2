"""A record of rank 2's shard lacks a key; the KeyError comes out of the Dataset, in the rank itself (no
workers).
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=program-error culprits=2 outcome=crashed

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Reviews(Dataset):
    def __init__(self, rank):
        self.records = [{"text": [1.0, 2.0, 3.0], "stars": i % 5} for i in range(64)]
        if rank == 2:
            del self.records[45]["stars"]

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        record = self.records[index]
        return torch.tensor(record["text"]), torch.tensor([float(record["stars"])])  # <- here


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for text, stars in DataLoader(Reviews(dist.get_rank()), batch_size=4):  # <- also
        optimizer.zero_grad()
        (model(text) - stars).abs().mean().backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
