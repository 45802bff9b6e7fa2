"""Rank 1 counts in int32 what the others count in float32: equal bytes, garbage in silence; the job
completes.
"""
# job: nproc=2 run_args="" timeout=60
# expect: pitfall=shape-mismatch also=collective-mismatch culprits=1|all outcome=completed as=warning|nothing|verdict

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    counts = torch.tensor([3, 5, 7, 11], dtype=torch.int32 if rank == 1 else torch.float32)
    for _ in range(3):
        dist.all_reduce(counts)  # <- here
    print(rank, counts.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
