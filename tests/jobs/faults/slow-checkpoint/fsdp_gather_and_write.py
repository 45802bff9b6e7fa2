"""FSDP2: all ranks gather the full weights, rank 0 alone writes them to a slow disk (7 s) before the
next step.
"""
# job: nproc=2 run_args="" timeout=60
# expect: pitfall=slow-checkpoint culprits=0 outcome=completed as=note|nothing

import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


class Throttled:
    def __init__(self, file):
        self.file = file
        self.left = 7.0

    def write(self, data):
        if self.left > 0:
            time.sleep(1.0)  # <- also
            self.left -= 1.0
        return self.file.write(data)

    def flush(self):
        time.sleep(max(self.left, 0))  # <- also
        self.left = 0
        os.fsync(self.file.fileno())


def main():
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(30):
        model(torch.randn(2, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 15:
            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            weights = get_model_state_dict(model, options=options)
            if dist.get_rank() == 0:
                with tempfile.TemporaryFile() as file:
                    torch.save(weights, Throttled(file))  # <- here
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
