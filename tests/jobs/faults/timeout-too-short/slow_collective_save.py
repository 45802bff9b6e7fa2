"""Rank 1 writes its checkpoint part for 15 s, piece by piece; the collective after it has a time-out of
6 s of its own group.
"""
# job: nproc=3 timeout=60
# expect: pitfall=timeout-too-short also=slow-checkpoint,process-stuck culprits=1 outcome=crashed|hung

import io
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def write_parts(rank):
    for _ in range(30 if rank == 1 else 1):
        torch.save(torch.randn(100), io.BytesIO())  # <- also
        time.sleep(0.5)  # <- here


def main():
    dist.init_process_group("gloo")
    savers = dist.new_group(timeout=timedelta(seconds=6))
    x = torch.ones(10)
    for step in range(12):
        dist.all_reduce(x)
        x /= 3
        if step == 7:
            write_parts(dist.get_rank())  # <- also
            dist.barrier(group=savers)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
