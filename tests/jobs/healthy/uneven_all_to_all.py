"""all_to_all_single with different split sizes on every rank, as a mixture of experts sends its tokens."""
# job: nproc=3 timeout=60
# expect: healthy

import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    for _ in range(25):
        sends = torch.randint(0, 6, (world,), generator=generator)
        receives = torch.empty_like(sends)
        dist.all_to_all_single(receives, sends)
        tokens = torch.full((int(sends.sum()), 4), float(rank))
        out = torch.empty(int(receives.sum()), 4)
        dist.all_to_all_single(out, tokens, receives.tolist(), sends.tolist())
    print(rank, out.shape)
    dist.barrier()
    time.sleep(0.2)  # torch 2.13 may abort a rank that ends right behind a gloo operation
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
