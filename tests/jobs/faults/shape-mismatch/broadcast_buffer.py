"""Rank 0 broadcasts a vocabulary of 900 entries into buffers that were sized for 512 on the others."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=shape-mismatch culprits=0|1|all outcome=crashed|hung|completed

import torch
import torch.distributed as dist

DEFAULT_SIZE = 512


def vocabulary(rank):
    if rank == 0:
        return torch.arange(900)  # as read from the file that only rank 0 has
    return torch.empty(DEFAULT_SIZE, dtype=torch.int64)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    words = vocabulary(dist.get_rank())
    dist.broadcast(words, 0)  # <- here
    total = words.sum()
    dist.all_reduce(total)  # <- also
    print(dist.get_rank(), total.item())
    dist.destroy_process_group()
