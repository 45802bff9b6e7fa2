"""Every rank ends with sys.exit(0), without destroying the group."""
# job: nproc=2 timeout=60
# expect: healthy

import sys
import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    for _ in range(25):
        dist.all_reduce(torch.ones(16))
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    return 0


if __name__ == "__main__":
    sys.exit(main())
