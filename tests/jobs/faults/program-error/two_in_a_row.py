"""Rank 2 raises first; rank 0 a quarter of a second later for a reason of its own, before it meets the
others. Only the first is the root.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=program-error culprits=2 outcome=crashed

import time

import torch
import torch.distributed as dist


def load(rank, step):
    if step == 6 and rank == 2:
        raise OSError("cannot decode image 17")  # <- here
    if step == 6 and rank == 0:
        time.sleep(0.25)
        return None
    return torch.ones(3) * rank


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(12):
        x = load(rank, step)  # <- also
        x = x * 2
        dist.all_reduce(x)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
