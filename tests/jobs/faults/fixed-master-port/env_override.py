"""MASTER_PORT is written into the script. Under torchrun every rank is then a client of a server nobody
starts.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=fixed-master-port culprits=all outcome=hung

import os

import torch
import torch.distributed as dist


def setup():
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"  # <- here
    dist.init_process_group("gloo")  # <- also


def main():
    setup()  # <- also
    x = torch.ones(2)
    dist.all_reduce(x)
    print(x)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
