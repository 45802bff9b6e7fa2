"""Every rank gathers its predictions, but rank 2's shard is shorter than what the others expect from it."""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=uneven-gather also=shape-mismatch culprits=2 outcome=crashed|hung|completed

import torch
import torch.distributed as dist
from torch import nn


def predict(model, rank, total=100):
    per_rank = (total + 2) // dist.get_world_size()  # 34, 34, 32
    mine = min(per_rank, total - per_rank * rank)
    with torch.no_grad():
        return model(torch.randn(mine, 5)).squeeze(1)


def main():
    dist.init_process_group("gloo")
    model = nn.Linear(5, 1)
    local = predict(model, dist.get_rank())
    everything = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, local)  # <- here
    predictions = torch.cat(everything)
    dist.barrier()  # <- also
    if dist.get_rank() == 0:
        print("mean", predictions.mean().item(), len(predictions))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
