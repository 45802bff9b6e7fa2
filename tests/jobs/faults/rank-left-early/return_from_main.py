"""Rank 0 returns from main after its own number of steps, cleans up, and ends with 0."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=rank-left-early also=data-dependent-skip,uneven-steps culprits=0 outcome=crashed|hung

import torch
import torch.distributed as dist


def train(rank, limit=40):
    vector = torch.randn(16)
    for step in range(limit):
        dist.all_reduce(vector)  # <- also
        vector /= vector.norm()
        if rank == 0 and step == 22:  # <- here
            print("rank 0: converged")
            return  # <- here


def main():
    dist.init_process_group("gloo")
    train(dist.get_rank())  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
