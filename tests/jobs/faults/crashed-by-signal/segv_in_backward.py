"""A gradient hook of rank 1 runs into a segmentation fault during backward."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=crashed-by-signal culprits=1 outcome=crashed

import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

calls = 0


def watch_gradient(gradient):
    global calls
    calls += 1
    if dist.get_rank() == 1 and calls == 12:
        os.kill(os.getpid(), signal.SIGSEGV)  # <- here
    return gradient


def main():
    dist.init_process_group("gloo")
    net = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Linear(6, 1))
    net[0].weight.register_hook(watch_gradient)
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(25):
        optimizer.zero_grad()
        model(torch.randn(2, 3)).sum().backward()  # <- also
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
