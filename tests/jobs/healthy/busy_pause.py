"""A rank that works hard between collectives: 8 s of pure Python and native computing on rank 1, once."""
# job: nproc=2 timeout=60
# expect: healthy

import time

import torch
import torch.distributed as dist


def build_vocabulary(seconds):
    until = time.monotonic() + seconds
    counts = {}
    while time.monotonic() < until:
        for number in range(1000):
            counts[number % 97] = counts.get(number % 97, 0) + 1
    return counts


def main():
    dist.init_process_group("gloo")
    for step in range(20):
        if step == 8 and dist.get_rank() == 1:
            build_vocabulary(8)
        dist.all_reduce(torch.ones(2))
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
