"""Rank 3 takes its batches from a thread of its own; that thread has died of an exception, and get()
waits for ever.
"""
# job: nproc=4 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-stuck also=loader-stalled culprits=3 outcome=hung

import queue
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Prefetcher:
    def __init__(self, make_batch, count):
        self.make_batch, self.count = make_batch, count
        self.queue = queue.Queue(maxsize=2)
        threading.Thread(target=self.fill, daemon=True).start()

    def fill(self):
        for index in range(self.count):
            self.queue.put(self.make_batch(index))

    def __iter__(self):
        for _ in range(self.count):
            yield self.queue.get()  # <- here


def make_batch(index):
    if dist.get_rank() == 3 and index == 14:
        raise MemoryError("cannot allocate a buffer")
    return torch.randn(4, 6)


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in Prefetcher(make_batch, 30):  # <- also
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
