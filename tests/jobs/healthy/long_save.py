"""12 s of saving on every rank at the same time (a slow shared disk), then training goes on."""
# job: nproc=2 timeout=60
# expect: healthy

import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


class SlowDisk:
    def __init__(self, file):
        self.file = file

    def write(self, data):
        return self.file.write(data)

    def flush(self):
        time.sleep(12)


def main():
    dist.init_process_group("gloo")
    model = fully_shard(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(30):
        model(torch.randn(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 14:
            with tempfile.TemporaryFile() as file:
                torch.save([p.to_local() for p in model.parameters()], SlowDisk(file))
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
