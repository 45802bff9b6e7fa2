"""A regular expression on rank 1 backtracks for ages over one line of its text, inside C and with the
GIL held.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-spinning culprits=1 outcome=hung

import re

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

WORDS = re.compile(r"^(\w+\s?)+$")


def clean(line):
    return WORDS.match(line) is not None  # <- here


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(15):
        line = "a quick brown fox"
        if dist.get_rank() == 1 and step == 9:
            line = "a" * 60 + "!"
        features = torch.tensor([[float(clean(line))]])  # <- also
        optimizer.zero_grad()
        model(features).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
