"""Something kills rank 3 with SIGKILL in the middle of training (here a timer thread of its own)."""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=crashed-by-signal also=host-out-of-memory culprits=3 outcome=crashed

import os
import signal
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 3:
        threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    model = DDP(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(400):
        optimizer.zero_grad()
        model(torch.randn(2, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.01)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
