"""Three ranks, three pairs: each rank begins with its right-hand neighbour. 0 waits for 1, 1 for 2, 2
for 0.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=group-order-inversion culprits=all outcome=hung

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = {}
    for left in range(world):
        right = (left + 1) % world
        pairs[left, right] = dist.new_group(sorted([left, right]))
    total = torch.zeros(10)
    for _ in range(6):
        dist.all_reduce(total)
        total += 1
    halo = torch.full((10,), float(rank))
    dist.all_reduce(halo, group=pairs[rank, (rank + 1) % world])  # <- here
    dist.all_reduce(halo, group=pairs[(rank - 1) % world, rank])
    print(rank, halo)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
