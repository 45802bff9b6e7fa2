"""Rank 0 and 1 share two groups; rank 0 reduces in the first and then the second, rank 1 the other way
round.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=group-order-inversion culprits=all outcome=hung

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradients = dist.new_group([0, 1])
    statistics = dist.new_group([0, 1])
    weight = torch.randn(64)
    for step in range(8):
        moments = torch.stack([weight.mean(), weight.var()])
        if step < 5 or rank == 0:
            dist.all_reduce(weight, group=gradients)  # <- here
            dist.all_reduce(moments, group=statistics)
        else:
            dist.all_reduce(moments, group=statistics)  # <- here
            dist.all_reduce(weight, group=gradients)
        weight /= 2
    print(rank, "done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
