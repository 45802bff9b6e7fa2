"""Rank 1 raises, and its `finally` wants to meet the others first: they see a mismatch or a hang, it an
exception that it has not printed yet.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=program-error also=lone-collective,data-dependent-skip culprits=1 outcome=hung|crashed

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def tokenize(text):
    return torch.tensor([float(int(word)) for word in text.split()])  # <- here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    try:
        for step in range(16):
            text = "1 2 three" if rank == 1 and step == 9 else "1 2 3"
            loss = model(tokenize(text)).sum()  # <- also
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        dist.barrier()  # <- also
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
