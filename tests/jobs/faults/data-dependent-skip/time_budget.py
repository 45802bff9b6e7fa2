"""Each rank looks at its own clock to end an epoch in time; rank 1's batches are slower, and it stops
earlier.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=data-dependent-skip also=uneven-steps culprits=1 outcome=hung|crashed

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

BUDGET_S = 1.5


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    began = time.perf_counter()
    if rank == 1:
        began -= 0.7  # its data took longer to open
    steps = 0
    while steps < 1000:
        if time.perf_counter() - began > BUDGET_S:  # <- here
            break  # <- here
        time.sleep(0.02)
        optimizer.zero_grad()
        model(torch.randn(3, 5)).sum().backward()  # <- also
        optimizer.step()
        steps += 1
    everyone = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    dist.all_gather_into_tensor(everyone, torch.tensor([steps]))  # <- also
    print(rank, everyone.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
