"""A monitoring process stops rank 2 from outside, wherever it is: mostly in backward."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-frozen culprits=2 outcome=hung

import os
import subprocess
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def attach_monitor():
    subprocess.Popen(["/bin/sh", "-c", f"sleep 1.5; kill -STOP {os.getpid()}"])


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    until, steps = time.time() + 60, 0
    while time.time() < until:
        steps += 1
        if steps == 10 and dist.get_rank() == 2:
            attach_monitor()
        optimizer.zero_grad()
        model(torch.randn(64, 256)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
