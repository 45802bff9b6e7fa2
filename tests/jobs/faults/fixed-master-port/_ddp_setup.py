"""Set up and clean up, as everybody copies them."""

import os

import torch.distributed as dist


def setup(rank, world_size):
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "12399"})  # <- here
    dist.init_process_group("gloo", rank=rank, world_size=world_size)  # <- also


def cleanup():
    dist.destroy_process_group()
