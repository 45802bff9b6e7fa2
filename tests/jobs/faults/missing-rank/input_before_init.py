"""Rank 0 waits for a server that has not answered yet (a listening socket that never accepts) before it
joins.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=missing-rank also=process-stuck culprits=0 outcome=hung

import os
import socket

import torch
import torch.distributed as dist


def fetch_config(port):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /config\n")
        return connection.recv(4096)  # <- here


def main():
    rank = int(os.environ["RANK"])
    silent_server = socket.create_server(("127.0.0.1", 0))
    if rank == 0:
        fetch_config(silent_server.getsockname()[1])  # <- also
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
