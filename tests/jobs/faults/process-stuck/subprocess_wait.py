"""Rank 0 runs an external evaluation script after an epoch, and that program waits for input for ever."""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-stuck culprits=0 outcome=hung

import subprocess

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def external_metric(value):
    result = subprocess.run(  # <- here
        ["/bin/sh", "-c", f"echo {value}; sleep 3600"], capture_output=True, text=True, check=True
    )
    return float(result.stdout)


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 2)).square().mean()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0 and epoch == 1:
            print("metric", external_metric(loss.item()))  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
