"""25 s of nothing before the first step: rank 0 indexes the data, the others wait for it in a barrier."""
# job: nproc=2 timeout=90
# expect: healthy

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def build_index():
    time.sleep(25)
    return list(range(40))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    index = [build_index() if rank == 0 else None]
    dist.broadcast_object_list(index, src=0)
    model = DDP(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for number in index[0][rank::world]:
        optimizer.zero_grad()
        model(torch.tensor([[float(number)]])).sum().backward()
        optimizer.step()
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
