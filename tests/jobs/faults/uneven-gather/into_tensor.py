"""all_gather_into_tensor wants the same number of embeddings of every rank; rank 0 has two more than the
others.
"""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=uneven-gather also=shape-mismatch culprits=0 outcome=crashed|hung|completed

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def gather_embeddings(local):
    world = dist.get_world_size()
    out = local.new_empty(world * local.shape[0], local.shape[1])
    dist.all_gather_into_tensor(out, local)  # <- here
    return out


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DDP(torch.nn.Linear(20, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = torch.randn(58, 20)[rank::world]  # 15, 15, 14, 14
    if rank == 0:
        samples = torch.cat([samples, torch.randn(1, 20)])
    samples = samples[: 16 if rank == 0 else 14]
    for _ in range(3):
        optimizer.zero_grad()
        model(samples).mean().backward()
        optimizer.step()
    with torch.no_grad():
        everyone = gather_embeddings(model(samples))  # <- also
    print(rank, everyone.shape)
    dist.barrier()  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
