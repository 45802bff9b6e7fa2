"""Rank 1 raises in step 7; the others fail in their all_reduce a moment later and shout louder."""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=program-error culprits=1 outcome=crashed

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def check(labels):
    if labels.max() > 9:
        raise ValueError(f"label {labels.max().item()} is not one of 10 classes")  # <- here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(30):
        x, y = torch.randn(8, 16), torch.randint(0, 10, (8,))
        if rank == 1 and step == 7:
            y[2] = 11
        check(y)  # <- also
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
