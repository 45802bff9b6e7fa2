"""Every rank sets WORLD_SIZE to 2 although 3 were started: ranks 0 and 1 train on, rank 2 does not exist
for them.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=world-size-mismatch also=missing-rank culprits=2|all outcome=crashed|hung|completed as=verdict|warning

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    os.environ["WORLD_SIZE"] = "2"  # <- here
    dist.init_process_group(backend="gloo")  # <- also
    model = DDP(torch.nn.Linear(4, 1))
    for _ in range(10):
        model(torch.randn(2, 4)).sum().backward()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
