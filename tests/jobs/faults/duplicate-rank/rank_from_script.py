"""The script sets RANK itself from a variable that is the same everywhere, so that every process is rank
0.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=duplicate-rank culprits=all|0 outcome=hung|crashed

import os

import torch
import torch.distributed as dist


def setup():
    os.environ["RANK"] = os.environ.get("NODE_RANK", "0")
    dist.init_process_group("gloo")  # <- here


if __name__ == "__main__":
    setup()
    value = torch.ones(1)
    dist.all_reduce(value)
    print(value)
    dist.destroy_process_group()
