"""Rank 1 comes to init_process_group long after rank 0's time-out of 8 s: rank 0 gives up, with a text
that names keys of a store and no rank.
"""
# job: nproc=2 timeout=60
# expect: pitfall=missing-rank also=timeout-too-short,slow-preprocessing culprits=1 outcome=crashed|hung

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def download(rank):
    time.sleep(40 if rank == 1 else 0)  # <- here


def main():
    download(int(os.environ["RANK"]))  # <- also
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
