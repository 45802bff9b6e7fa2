"""WORLD_SIZE is written over with the number of devices of the big machine: 4 are awaited, 2 were
started.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=missing-rank also=world-size-mismatch culprits=2,3|all outcome=hung

import os

import torch
import torch.distributed as dist

DEVICES_PER_MACHINE = 4


def setup():
    os.environ["WORLD_SIZE"] = str(DEVICES_PER_MACHINE)  # <- here
    dist.init_process_group("gloo")  # <- also


def main():
    setup()  # <- also
    x = torch.zeros(1)
    dist.all_reduce(x)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
