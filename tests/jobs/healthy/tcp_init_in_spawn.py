"""No torchrun: mp.spawn, with a master port that the script chooses for itself. Here that is right."""
# job: nproc=2 timeout=60 form=command
# expect: healthy

import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, world, port):
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    x = torch.ones(4)
    for _ in range(30):
        dist.all_reduce(x)
        x /= world
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = probe.getsockname()[1]
    mp.spawn(train, args=(2, free_port), nprocs=2)
    print("done")
