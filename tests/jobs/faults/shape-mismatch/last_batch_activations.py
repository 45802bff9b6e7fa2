"""The last batch of rank 1 is shorter, and an all_reduce over the batch dimension gets another size
there.
"""
# job: nproc=3 run_args="--stall-after 5" timeout=60
# expect: pitfall=shape-mismatch culprits=1 outcome=crashed|hung

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    count = 45 if rank == 1 else 48
    data = TensorDataset(torch.randn(count, 7))
    loader = DataLoader(data, batch_size=8)
    scores = None
    for (x,) in loader:
        features = x.mean(dim=1)
        dist.all_reduce(features)  # <- here
        scores = features / dist.get_world_size()
    print(rank, scores.shape)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
