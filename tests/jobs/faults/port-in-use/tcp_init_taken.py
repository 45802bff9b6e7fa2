"""The script meets at a port of its own choice, and another program (here a socket of rank 0) listens
there. Under torchrun no rank starts a server of its own, so that all connect to the stranger and wait
for its answer.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=port-in-use also=fixed-master-port culprits=0|all outcome=hung

import os
import socket

import torch
import torch.distributed as dist

PORT = 29873


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == 0:
        dashboard = socket.create_server(("127.0.0.1", PORT))
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{PORT}", rank=rank, world_size=world)  # <- here
    x = torch.zeros(3)
    dist.all_reduce(x)
    if rank == 0:
        dashboard.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
