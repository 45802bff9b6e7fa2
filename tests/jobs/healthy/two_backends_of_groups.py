"""Overlapping groups on 4 ranks in one agreed order, with a device mesh, scalar and object collectives."""
# job: nproc=4 timeout=60
# expect: healthy

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    tensor, data = mesh.get_group("tensor"), mesh.get_group("data")
    x = torch.ones(8)
    for step in range(20):
        dist.all_reduce(x, group=tensor)
        dist.all_reduce(x, group=data)
        x /= 4
        if step % 5 == 0:
            rows = [None] * 2
            dist.all_gather_object(rows, {"rank": rank, "step": step}, group=data)
    dist.barrier()
    print(rank, x[0].item())
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
