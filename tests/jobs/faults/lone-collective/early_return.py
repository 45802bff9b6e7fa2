"""validate() returns early on a rank without validation samples and never reaches the all_reduce in it."""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=lone-collective also=data-dependent-skip,empty-shard culprits=3 outcome=hung|crashed

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def validate(model, samples):
    if len(samples) == 0:  # <- here
        return None  # <- here
    with torch.no_grad():
        loss = model.module(torch.stack(samples)).mean()
    total = torch.stack([loss, torch.tensor(float(len(samples)))])
    dist.all_reduce(total)  # <- also
    return total[0] / total[1]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    validation = list(torch.randn(7, 3))[rank::world][: 2 if rank < 3 else 0]
    for epoch in range(4):
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(6, 3)).mean().backward()  # <- also
            optimizer.step()
        if epoch == 2:
            print(rank, validate(model, validation))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
