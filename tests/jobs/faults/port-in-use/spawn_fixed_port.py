"""mp.spawn with the port of every tutorial, which a forgotten process still listens on: rank 0 cannot
bind it.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60 form=command
# expect: pitfall=port-in-use also=stale-process culprits=0 outcome=crashed

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PORT = 29879


def train(rank, world):
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(PORT)
    dist.init_process_group("gloo", rank=rank, world_size=world)  # <- here
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", PORT)):
        mp.spawn(train, args=(2,), nprocs=2)  # <- also
