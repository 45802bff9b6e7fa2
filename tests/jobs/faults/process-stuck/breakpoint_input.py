"""A question to the user on rank 0, whose standard input is a terminal or pipe that nobody types into."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-stuck culprits=0 outcome=hung

import os
import sys

import torch
import torch.distributed as dist


def confirm(question):
    print(question, end=" ", flush=True)
    return sys.stdin.readline().strip() == "y"  # <- here


def main():
    # stands for a terminal: a pipe whose other end stays open
    reading, _ = os.pipe()
    os.dup2(reading, 0)
    dist.init_process_group("gloo")
    for step in range(15):
        dist.all_reduce(torch.ones(2))
        if step == 8 and dist.get_rank() == 0 and not confirm("loss is rising, go on? [y/n]"):  # <- also
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
