"""SIGFPE on rank 1 while it builds its model, after init and before anything else."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=crashed-by-signal culprits=1 outcome=crashed

import signal

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def calibrate(rank):
    if rank == 1:
        signal.raise_signal(signal.SIGFPE)  # <- here
    return 1.0


def main():
    dist.init_process_group("gloo")
    scale = calibrate(dist.get_rank())  # <- also
    model = fully_shard(torch.nn.Linear(4, 4))
    for _ in range(5):
        (model(torch.randn(2, 4)) * scale).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
