"""A parameter server with two clients over send and recv from any source: no collectives, no common
rhythm.
"""
# job: nproc=3 timeout=60
# expect: healthy

import time

import torch
import torch.distributed as dist

ROUNDS = 15


def serve(clients):
    weights = torch.zeros(6)
    update = torch.empty(6)
    for _ in range(ROUNDS * clients):
        source = dist.recv(update)
        weights += update
        dist.send(weights, dst=source)


def work(rank):
    weights = torch.empty(6)
    for _ in range(ROUNDS):
        time.sleep(0.02 * rank)
        dist.send(torch.randn(6), dst=0)
        dist.recv(weights, src=0)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        serve(dist.get_world_size() - 1)
    else:
        work(dist.get_rank())
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()
