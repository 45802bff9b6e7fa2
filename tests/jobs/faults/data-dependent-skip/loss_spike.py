"""A loss spike makes rank 0 return from its step function before backward; the caller thinks nothing of
it.
"""
# job: nproc=2 run_args="--stall-after 5" timeout=60 args="--threshold 50"
# expect: pitfall=data-dependent-skip culprits=0 outcome=hung|crashed

import argparse
from collections import deque

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Experiment:
    def __init__(self, options):
        self.options = options
        self.rank = dist.get_rank()
        self.model = DDP(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.history = deque(maxlen=20)

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = (self.model(x) - y).square().mean()
        self.history.append(loss.item())
        if loss.item() > self.options.threshold:  # <- here
            print(f"rank {self.rank}: spike of {loss.item():.0f}, batch ignored")
            return None  # <- here
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def run(self):
        for index in range(self.options.steps):
            x, y = torch.randn(8, 4), torch.randn(8, 1)
            if self.rank == 0 and index == 9:
                y[0] = 1000.0
            self.step(x, y)  # <- also
        dist.barrier()  # <- also


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--threshold", type=float)
    parser.add_argument("--steps", type=int, default=25)
    dist.init_process_group("gloo")
    Experiment(parser.parse_args()).run()
    dist.destroy_process_group()
