"""Rank 1 is stopped (SIGSTOP), as by a debugger or a scheduler, and nobody continues it."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-frozen culprits=1 outcome=hung

import os
import signal

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights = torch.randn(100)
    for step in range(30):
        if rank == 1 and step == 10:
            os.kill(os.getpid(), signal.SIGSTOP)  # <- here
        dist.all_reduce(weights)
        weights /= dist.get_world_size()
    print(rank, weights.norm().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
