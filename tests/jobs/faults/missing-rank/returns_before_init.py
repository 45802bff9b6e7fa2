"""Rank 1 finds nothing to do and ends with 0 before it has ever called init_process_group; the other
waits for it.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=missing-rank also=rank-left-early culprits=1 outcome=hung

import os

import torch
import torch.distributed as dist


def my_files(rank):
    return ["part-0.bin"] if rank == 0 else []


def main():
    files = my_files(int(os.environ["RANK"]))
    if not files:  # <- also
        print("no files for this rank")
        return  # <- here
    dist.init_process_group("gloo")  # <- also
    x = torch.ones(len(files))
    dist.all_reduce(x)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
