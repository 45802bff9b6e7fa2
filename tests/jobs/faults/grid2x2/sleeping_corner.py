"""A 2x2 grid of row and column groups. Rank 3 sleeps; 1 and 2 wait for it, 0 waits for those: only 3 is
the root.
"""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-stuck culprits=3 outcome=hung

import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    row, column = divmod(rank, 2)
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    shard = torch.ones(32) * rank
    for step in range(20):
        if rank == 3 and step == 9:
            time.sleep(3600)  # <- here
        dist.all_reduce(shard, group=rows[row])
        dist.all_reduce(shard, group=columns[column])
        shard /= 4
    dist.barrier()
    dist.destroy_process_group()


main()
