"""A stream cut by rank and loader worker: the remainders pile up, rank 1 ends two batches before rank 0
and calls monitored_barrier.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=uneven-steps culprits=1 outcome=hung|crashed

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.utils.data as data
from torch.nn.parallel import DistributedDataParallel as DDP


class Stream(data.IterableDataset):
    def __init__(self, rank, world, length=70):
        self.rank, self.world, self.length = rank, world, length

    def __iter__(self):
        info = data.get_worker_info()
        offset = self.rank * info.num_workers + info.id
        for index in range(offset, self.length, self.world * info.num_workers):
            yield torch.tensor([index % 11, index % 13], dtype=torch.float32)


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    stream = Stream(dist.get_rank(), dist.get_world_size())
    for batch in data.DataLoader(stream, batch_size=2, num_workers=2, drop_last=True):  # <- here
        optimizer.zero_grad()
        model(batch).mean().backward()  # <- also
        optimizer.step()
    dist.monitored_barrier(timeout=timedelta(minutes=20))  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
