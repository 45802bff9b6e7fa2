"""Rank 2 meets an exception and tries to tell the others by an all_reduce that they do not expect;
theirs is the gradient's.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=lone-collective also=data-dependent-skip,shape-mismatch culprits=2 outcome=crashed|hung

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def parse(record):
    return torch.tensor([float(word) for word in record.split()])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    failures = torch.zeros(1)
    for step in range(20):
        record = "1 2 x 4" if rank == 2 and step == 11 else "1 2 3 4"
        try:
            batch = parse(record).unsqueeze(0)  # <- also
        except ValueError:  # <- also
            failures += 1
            dist.all_reduce(failures)  # <- here
            continue  # <- also
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
