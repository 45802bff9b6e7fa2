"""An IterableDataset on rank 1 looks for a sample that passes its filter and finds none: its worker
spins, the rank waits for the batch.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=loader-stalled also=process-spinning culprits=1 outcome=hung

import itertools

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class GoodSamples(IterableDataset):
    def __init__(self, limit):
        self.limit = limit

    def __iter__(self):
        for number in itertools.cycle(range(1000)):
            if self.is_good(number):  # <- also
                yield torch.tensor([number / 1000])

    def is_good(self, number):
        self.limit -= 1  # <- also
        return number % 3 == 0 and self.limit > 0  # <- here


def main():
    dist.init_process_group("gloo")
    dataset = GoodSamples(limit=300 if dist.get_rank() == 1 else 10**9)
    loader = DataLoader(dataset, batch_size=5, num_workers=1)
    model = DDP(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _, batch in zip(range(60), loader, strict=False):  # <- also
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
