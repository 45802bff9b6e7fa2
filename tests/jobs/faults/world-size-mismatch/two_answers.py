"""Rank 1 believes in a world of 2, the others in one of 3: it leaves the meeting early and nobody
completes.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=world-size-mismatch culprits=1 outcome=hung|crashed

import os

import torch
import torch.distributed as dist


def world_size():
    # somebody's override for debugging, forgotten in one start script
    return 2 if os.environ["RANK"] == "1" else int(os.environ["WORLD_SIZE"])


def main():
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=world_size())  # <- here
    x = torch.ones(4)
    dist.all_reduce(x)
    print(x)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
