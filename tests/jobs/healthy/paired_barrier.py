"""The paired barrier, "rank 0 first": the others wait before the work, rank 0 joins them after it. It is
right.
"""
# job: nproc=3 timeout=60
# expect: healthy

import contextlib
import time

import torch
import torch.distributed as dist


@contextlib.contextmanager
def rank_zero_first():
    rank = dist.get_rank()
    if rank != 0:
        dist.barrier()
    yield
    if rank == 0:
        dist.barrier()


def main():
    dist.init_process_group("gloo")
    cache = {}
    for epoch in range(3):
        with rank_zero_first():
            time.sleep(0.5 if dist.get_rank() == 0 else 0.05)
            cache[epoch] = torch.full((3,), float(epoch))
        dist.all_reduce(cache[epoch])
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
