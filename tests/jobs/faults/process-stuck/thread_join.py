"""Rank 1 joins its checkpoint thread before the next step, and that thread waits for an event nobody
sets.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60
# expect: pitfall=process-stuck also=slow-checkpoint culprits=1 outcome=hung

import io
import threading

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


class BackgroundSaver:
    def __init__(self):
        self.thread = None
        self.quota = threading.Semaphore(2)

    def save(self, shards):
        if self.thread is not None:
            self.thread.join()  # <- here
        self.thread = threading.Thread(target=self.write, args=(shards,))
        self.thread.start()

    def write(self, shards):
        self.quota.acquire()  # <- also
        torch.save(shards, io.BytesIO())
        if dist.get_rank() != 1:
            self.quota.release()


def main():
    dist.init_process_group("gloo")
    model = fully_shard(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saver = BackgroundSaver()
    for step in range(40):
        model(torch.randn(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 4:
            saver.save([p.to_local().clone() for p in model.parameters()])  # <- also
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
