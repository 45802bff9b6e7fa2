"""Rank 0 counts itself twice and awaits a world of 3; rank 1 a world of 2, as started."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=world-size-mismatch also=missing-rank culprits=0|all outcome=hung|crashed

import os

import torch
import torch.distributed as dist


class Cluster:
    def __init__(self):
        self.rank = int(os.environ["RANK"])
        self.helpers = int(os.environ["WORLD_SIZE"]) - (0 if self.rank == 0 else 1)

    def join(self):
        dist.init_process_group("gloo", rank=self.rank, world_size=self.helpers + 1)  # <- here


if __name__ == "__main__":
    Cluster().join()  # <- also
    x = torch.ones(1)
    dist.all_reduce(x)
    print(x)
    dist.destroy_process_group()
