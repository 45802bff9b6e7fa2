"""The init method carries a port of its own; under torchrun every rank is a client there and nobody the
server.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=fixed-master-port also=master-unreachable culprits=all outcome=hung

import os

import torch
import torch.distributed as dist

INIT_METHOD = "tcp://127.0.0.1:23456"


class Distributed:
    def __enter__(self):
        dist.init_process_group(  # <- here
            backend="gloo",
            init_method=INIT_METHOD,
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )
        return dist.get_rank()

    def __exit__(self, *exception):
        dist.destroy_process_group()


if __name__ == "__main__":
    with Distributed() as rank:  # <- also
        x = torch.tensor([float(rank)])
        dist.all_reduce(x)
        print(x)
