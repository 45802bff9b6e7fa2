"""Rank 1 fails in the first attempt, torchrun restarts all, the second attempt succeeds: the job as a
whole does.
"""
# job: nproc=2 run_args="--max-restarts 1" timeout=60
# expect: healthy

import os
import time

import torch
import torch.distributed as dist


def main():
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, is_master=False)
    store = dist.PrefixStore(f"attempt{attempt}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    total = torch.zeros(4)
    for step in range(30):
        if attempt == 0 and rank == 1 and step == 10:
            raise ConnectionResetError("a network disk went away")
        update = torch.ones(4)
        dist.all_reduce(update)
        total += update
    dist.barrier()
    print(rank, total[0].item())
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
