"""Rank 0 polls for a file without a pause between two looks; the file never comes. A busy wait, in
Python.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-spinning also=process-stuck culprits=0 outcome=hung

import os
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def wait_for(path):
    while not os.path.exists(path):  # <- here
        pass  # <- also


def main():
    dist.init_process_group("gloo")
    model = fully_shard(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tempfile.TemporaryDirectory() as folder:
        for step in range(12):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 6 and dist.get_rank() == 0:
                wait_for(f"{folder}/next-stage.ready")  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
