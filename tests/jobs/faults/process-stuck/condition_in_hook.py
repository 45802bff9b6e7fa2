"""A gradient hook of rank 0 waits on a condition: the rank hangs inside backward, but in Python code of
its own.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-stuck culprits=0 outcome=hung

import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

quota = threading.Condition()
budget = [18]


def throttle(gradient):
    with quota:
        budget[0] -= 1
        if dist.get_rank() == 0:
            quota.wait_for(lambda: budget[0] > 0)  # <- here
    return gradient


def main():
    dist.init_process_group("gloo")
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    net[2].weight.register_hook(throttle)
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()  # <- also
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
