"""Ranks are computed as if two processes shared a device: 0, 0, 1, 1 of 4. Two numbers are claimed
twice, two never.
"""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=duplicate-rank also=missing-rank culprits=0,1|all outcome=hung|crashed

import os

import torch
import torch.distributed as dist


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo", rank=local_rank // 2, world_size=int(os.environ["WORLD_SIZE"]))  # <- here
    x = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(x)
    print(x)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
