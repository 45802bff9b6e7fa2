"""DDP over hand-made shards: 117 samples over 4 ranks are 30, 29, 29, 29, so that rank 0 takes a 30th
step alone.
"""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=uneven-steps culprits=1,2,3 outcome=hung|crashed

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    full = TensorDataset(torch.randn(117, 8), torch.randn(117, 1))
    shard = Subset(full, range(rank, len(full), world))
    loader = DataLoader(shard, batch_size=1, shuffle=True)

    model = DDP(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:  # <- here
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()  # <- also
        optimizer.step()
    dist.barrier()  # <- also
    if rank == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
