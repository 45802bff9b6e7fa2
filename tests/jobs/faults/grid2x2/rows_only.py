"""Rank 2 sleeps before its row's reduction. Row 0 does not need it and runs on until the next column
reduction.
"""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-stuck culprits=2 outcome=hung

import threading

import torch
import torch.distributed as dist


def make_groups(rank):
    row = column = None
    for members in ([0, 1], [2, 3]):
        group = dist.new_group(members)
        row = group if rank in members else row
    for members in ([0, 2], [1, 3]):
        group = dist.new_group(members)
        column = group if rank in members else column
    return row, column


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    row, column = make_groups(rank)
    ready = threading.Event()
    x = torch.randn(64)
    for outer in range(5):
        for inner in range(10):
            if rank == 2 and outer == 3 and inner == 4:
                ready.wait()  # <- here
            dist.all_reduce(x, group=row)
            x /= 2
        dist.broadcast(x, src=rank % 2, group=column)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
