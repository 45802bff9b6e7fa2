"""A `with` block suppresses what goes wrong on rank 2, main comes to its end, and the process exits with
0.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=rank-left-early also=data-dependent-skip,program-error culprits=2 outcome=crashed|hung

import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def next_sample(rank, step):
    if rank == 2 and step == 10:
        raise FileNotFoundError("sample-000010.npy")  # <- here
    return torch.randn(1, 5)


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with contextlib.suppress(OSError):  # <- also
        for step in range(30):
            x = next_sample(dist.get_rank(), step)  # <- also
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
