"""The ranks meet by a file, not by torchrun's store, and use a sub-store for their own counters."""
# job: nproc=2 timeout=60
# expect: healthy

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    path = Path(tempfile.gettempdir()) / f"store-of-{os.getppid()}"
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    for _ in range(20):
        dist.all_reduce(torch.ones(4))
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()
    path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
