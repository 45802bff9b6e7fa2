"""Rank 0 writes its checkpoint with pickle, not torch.save, and takes 9 s in compression; the others are
in the next step's backward.
"""
# job: nproc=3 run_args="" timeout=60
# expect: pitfall=slow-checkpoint also=straggler culprits=0 outcome=completed as=note|nothing

import io
import lzma
import pickle
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def write_checkpoint(state, least_seconds=9):
    began = time.monotonic()
    data = pickle.dumps(state)
    while time.monotonic() - began < least_seconds:
        with lzma.open(io.BytesIO(), "wb", preset=9) as archive:
            archive.write(data * 50)  # <- here


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(50, 50))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(40):
        optimizer.zero_grad()
        model(torch.randn(2, 50)).sum().backward()
        optimizer.step()
        if step == 25 and dist.get_rank() == 0:
            write_checkpoint(model.module.state_dict())  # <- also
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
