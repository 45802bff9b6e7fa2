"""Ranks 2 and 3 took world_size from a configuration file for 2 ranks, and fail at once: their rank is
not in it.
"""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=world-size-mismatch also=program-error culprits=2,3|all outcome=crashed|hung

import json
import os

import torch
import torch.distributed as dist

OLD = json.loads('{"world_size": 2, "lr": 0.1}')
NEW = json.loads('{"world_size": 4, "lr": 0.1}')


def main():
    rank = int(os.environ["RANK"])
    config = OLD if rank >= 2 else NEW
    dist.init_process_group("gloo", rank=rank, world_size=config["world_size"])  # <- here
    x = torch.ones(3)
    dist.all_reduce(x)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
