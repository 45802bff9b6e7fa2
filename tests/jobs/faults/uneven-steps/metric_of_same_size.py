"""Loss and metric are both one float: rank 3's metric all_reduce silently answers another rank's loss
all_reduce; the others then wait for a partner that has gone.
"""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=uneven-steps culprits=3 outcome=crashed|hung

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Shard(Dataset):
    def __init__(self, rank, world):
        self.indices = list(range(63))[rank::world]

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, position):
        return torch.tensor([float(self.indices[position])])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    slope = torch.zeros(1, requires_grad=True)
    loader = DataLoader(Shard(rank, world), batch_size=1, num_workers=2)
    seen = torch.zeros(1)
    for x in loader:  # <- here
        loss = (slope * x - 3 * x).square().mean()
        (gradient,) = torch.autograd.grad(loss, slope)
        dist.all_reduce(gradient)  # <- also
        with torch.no_grad():
            slope -= 1e-5 * gradient / world
        seen += 1
    dist.all_reduce(seen)  # <- also
    print(f"rank {rank} saw {seen.item()} samples in all")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
