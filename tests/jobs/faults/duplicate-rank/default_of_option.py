"""--rank has a default of 0 and nobody passes it on one process: rank 2 too calls itself 0."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=duplicate-rank also=missing-rank culprits=0|all outcome=hung|crashed

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, default=0)
    # stands for a wrapper script that passes the rank on in two of three cases
    inherited = os.environ["RANK"]
    return parser.parse_args([] if inherited == "2" else ["--rank", inherited])


def main():
    args = options()
    dist.init_process_group("gloo", rank=args.rank, world_size=int(os.environ["WORLD_SIZE"]))  # <- here
    model = DDP(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
