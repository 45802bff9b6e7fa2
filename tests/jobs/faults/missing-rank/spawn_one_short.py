"""mp.spawn starts 2 ranks where the world size says 3: an off-by-one in the launcher part of the script."""
# job: nproc=3 run_args="--stall-after 5" timeout=60 form=command
# expect: pitfall=missing-rank also=world-size-mismatch culprits=2 outcome=hung

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 3


def train(rank, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)  # <- here
    x = torch.ones(2)
    dist.all_reduce(x)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    mp.spawn(train, args=(free_port(),), nprocs=WORLD - 1)  # <- also
