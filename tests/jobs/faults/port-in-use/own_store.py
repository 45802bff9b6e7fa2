"""Rank 0 opens a store of its own on a port that another process of the machine holds: address already
in use.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=port-in-use culprits=0 outcome=crashed

import os
import socket
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

PORT = 29877
HOLDER = f"import socket, time; s = socket.create_server(('', {PORT})); time.sleep(25)"


def start_holder():
    """Stands for a process that an earlier run left behind."""
    subprocess.Popen([sys.executable, "-S", "-c", HOLDER])
    while socket.socket().connect_ex(("127.0.0.1", PORT)) != 0:
        time.sleep(0.05)


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == 0:
        start_holder()
    else:
        time.sleep(1)
    store = dist.TCPStore("127.0.0.1", PORT, world, is_master=rank == 0, timeout=timedelta(seconds=40))  # <- here
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
