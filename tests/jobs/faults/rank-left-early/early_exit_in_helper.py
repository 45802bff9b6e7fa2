"""Rank 3 has an empty shard and calls exit() in the function that prepares data, after init."""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=rank-left-early also=empty-shard culprits=3 outcome=crashed|hung

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def shard(items, rank, world):
    per_rank = -(-len(items) // world)
    mine = items[rank * per_rank : (rank + 1) * per_rank]
    if not mine:  # <- also
        print("nothing to do here")
        raise SystemExit  # <- here
    return mine


def main():
    dist.init_process_group("gloo")
    mine = shard(list(range(6)), dist.get_rank(), dist.get_world_size())  # <- also
    model = DDP(torch.nn.Linear(1, 1))
    for item in mine:
        model(torch.tensor([[float(item)]])).sum().backward()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
