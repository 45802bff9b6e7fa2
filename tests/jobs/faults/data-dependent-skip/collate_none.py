"""Unreadable samples are dropped by collate_fn, and a batch of nothing but those is skipped before the
forward: rank 3 comes one step short to the gather of results.
"""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=data-dependent-skip also=uneven-steps culprits=3 outcome=hung|crashed

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pictures(Dataset):
    def __len__(self):
        return 192

    def __getitem__(self, index):
        corrupt = index % 4 == 3 and 60 <= index < 76
        return None if corrupt else torch.full((3,), index / 192)


def skip_broken(samples):
    samples = [sample for sample in samples if sample is not None]
    return torch.stack(samples) if samples else None


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pictures = Pictures()
    sampler = DistributedSampler(pictures, shuffle=False)
    loader = DataLoader(pictures, 3, sampler=sampler, collate_fn=skip_broken, num_workers=1)
    model = DDP(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    used = 0
    for batch in loader:
        if batch is None:  # <- here
            continue  # <- here
        optimizer.zero_grad()
        model(batch).mean().backward()  # <- also
        optimizer.step()
        used += len(batch)
    report = [None] * world if rank == 0 else None
    dist.gather_object(used, report, dst=0)  # <- also
    print(rank, report)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
