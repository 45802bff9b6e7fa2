"""Rank 2 backs off before it retries an upload: 2 hours, by a wrong unit."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-stuck culprits=2 outcome=hung

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def retry(action, waits=(0.0, 7200)):
    for wait in waits:
        time.sleep(wait)  # <- here
        try:
            return action()
        except ConnectionError:
            continue
    return None


def upload():
    raise ConnectionError


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        optimizer.zero_grad()
        model(torch.randn(1, 3)).sum().backward()
        optimizer.step()
        if step == 11 and dist.get_rank() == 2:
            retry(upload)  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
