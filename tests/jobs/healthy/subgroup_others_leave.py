"""Ranks 2 and 3 only prepare data; they finish and leave while ranks 0 and 1 train on in a group of
their own.
"""
# job: nproc=4 timeout=60
# expect: healthy

import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainers = dist.new_group([0, 1])
    data = [torch.randn(6) for _ in range(4)]
    for tensor in data:
        dist.broadcast(tensor, src=3)
    if rank >= 2:
        print(f"rank {rank}: data handed over, leaving")
        time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
        return
    for _ in range(30):
        gradient = sum(data) * torch.rand(1)
        dist.all_reduce(gradient, group=trainers)
        time.sleep(0.1)
    print(f"rank {rank}: trained")
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation


if __name__ == "__main__":
    main()
