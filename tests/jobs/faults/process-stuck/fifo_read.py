"""Rank 1 reads its next learning rate from a pipe that somebody holds open and writes nothing to."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-stuck culprits=1 outcome=hung

import os

import torch
import torch.distributed as dist


def next_rate(pipe):
    line = pipe.readline()  # <- here
    return float(line or 0.1)


def main():
    dist.init_process_group("gloo")
    reading, writing = os.pipe()
    os.write(writing, b"0.1\n0.05\n0.02\n" if dist.get_rank() == 1 else b"0.1\n0.05\n0.02\n0.01\n" * 5)
    weights = torch.zeros(8)
    with os.fdopen(reading) as pipe:
        for _ in range(8):
            rate = next_rate(pipe)  # <- also
            gradient = torch.randn(8)
            dist.all_reduce(gradient)
            weights -= rate * gradient
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
