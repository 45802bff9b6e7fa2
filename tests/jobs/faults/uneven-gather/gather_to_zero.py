"""gather with receive buffers of one size; rank 1's last evaluation batch is smaller."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=uneven-gather also=shape-mismatch culprits=1 outcome=completed|crashed|hung as=warning|nothing|verdict

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    validation = torch.randn(20 if rank == 1 else 24, 4)
    collected = []
    for batch in DataLoader(validation, batch_size=8):
        scores = batch.sum(dim=1)
        target = [torch.empty(len(scores)) for _ in range(world)] if rank == 0 else None
        dist.gather(scores, gather_list=target, dst=0)  # <- here
        if rank == 0:
            collected.extend(target)
    dist.barrier()  # <- also
    if rank == 0:
        print("scores", len(torch.cat(collected)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
