"""collate_fn of rank 2 waits for a tokenizer process's answer in a pipe; fetched by hand with
next(iterator).
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=loader-stalled culprits=2 outcome=hung

import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

reading, writing = os.pipe()


def tokenize(batch):
    if dist.get_rank() == 2 and 40 in batch:
        os.read(reading, 1)  # <- here
    return torch.tensor(batch, dtype=torch.float32)


def main():
    dist.init_process_group("gloo")
    loader = DataLoader(range(80), batch_size=4, collate_fn=tokenize, num_workers=1, prefetch_factor=2)
    iterator = iter(loader)
    total = torch.zeros(1)
    for _ in range(len(loader)):
        batch = next(iterator)  # <- also
        total += batch.sum()
        dist.all_reduce(total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
