"""An assertion in a helper file fails on rank 3 while the others are inside their backward already."""
# job: nproc=4 run_args="--stall-after 5" timeout=60 files=_checks.py
# expect: pitfall=program-error culprits=3 outcome=crashed

import time

import torch
import torch.distributed as dist
from _checks import check_batch
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(6, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        batch = torch.randn(5, 6).clamp(-9, 9)
        if rank == 3 and step == 13:
            time.sleep(1)  # late as well
            batch[0, 0] = 1e6
        check_batch(batch, step)  # <- also
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
