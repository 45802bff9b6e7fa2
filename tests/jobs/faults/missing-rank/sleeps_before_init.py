"""Rank 2 prepares its data for an hour before it calls init_process_group; the others wait for it there."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=missing-rank also=process-stuck,slow-preprocessing culprits=2 outcome=hung

import os
import time

import torch
import torch.distributed as dist


def prepare(shard):
    if shard == 2:
        time.sleep(3600)  # <- here
    return torch.arange(shard * 10, shard * 10 + 10)


def main():
    data = prepare(int(os.environ["RANK"]))  # <- also
    dist.init_process_group("gloo")
    total = data.sum()
    dist.all_reduce(total)
    print(total.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
